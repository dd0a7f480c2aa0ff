"""Who is stepped next, reckoned exactly: served time, turns, and the time newcomers start at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dflashd.protocol.credit import SendWindow
from dflashd.worker.loop.request import ActiveRequest
from dflashd.worker.loop.schedule import Schedule

NONE: Any = SimpleNamespace()


def request(credit: int = 9, served_s: float = 0.0) -> ActiveRequest:
    return ActiveRequest(
        assignment=NONE,
        model=NONE,
        assigned_at_s=0.0,
        credit=SendWindow(credit),
        served_s=served_s,
    )


def start_of_a_newcomer(schedule: Schedule) -> float:
    newcomer = request()
    schedule.join(newcomer)
    return newcomer.served_s


def test_least_served_is_next_and_among_equals_the_one_stepped_longest_ago() -> None:
    """Time served decides before turns do; who may not send is not stepped."""
    schedule = Schedule()
    a, b, c = request(), request(), request(served_s=0.5)
    without_credit = request(credit=0)
    everybody = (without_credit, a, b, c)
    assert [schedule.choose(everybody) for _ in range(4)] == [a, b, a, b]
    schedule.charge(b, 1.0)
    assert [schedule.choose(everybody) for _ in range(2)] == [a, a]
    schedule.charge(a, 2.0)
    assert schedule.choose(everybody) is c
    assert schedule.choose([without_credit]) is None
    assert schedule.choose([]) is None


def test_newcomer_starts_at_an_equal_share() -> None:
    """What was spent divides among those that could have been stepped."""
    schedule = Schedule()
    a, b, c = request(), request(), request()
    assert start_of_a_newcomer(schedule) == 0.0
    assert schedule.choose([a, b]) is a
    schedule.charge(a, 4.0)
    assert a.served_s == 4.0
    assert start_of_a_newcomer(schedule) == 2.0
    assert schedule.choose([a, b, c]) is b
    schedule.charge(b, 3.0)
    assert start_of_a_newcomer(schedule) == 3.0


def test_newcomer_is_never_ahead_of_who_is_stepped() -> None:
    """The least served of those that are ready is where the present is."""
    schedule = Schedule()
    assert schedule.choose([request(served_s=9.0)])
    assert start_of_a_newcomer(schedule) == 9.0


def test_who_waited_keeps_what_it_had_beyond_its_share() -> None:
    """Coming back is no way to get time for nothing."""
    schedule = Schedule()
    back = request(served_s=7.0)
    schedule.join(back)
    assert back.served_s == 7.0
