"""Health questions: each worker gets them in time, and they go out together."""

from __future__ import annotations

from itertools import pairwise

from dflashd.protocol.messages import Cancel, Chunk, Ping
from dflashd.supervisor.core.effects import SendToWorker
from dflashd.supervisor.core.events import ClientSent, TimePassed
from dflashd.supervisor.core.health import ROUND_SHARE
from dflashd.supervisor.core.life import Phase

from .core_bench import PEER, CoreBench

WORKERS = 100
LOOK_S = 10.0


def crowd(bench: CoreBench) -> None:
    """All models loaded, their workers started evenly over a second."""
    for name in bench.sizes:
        bench.spawn(name)
        bench.now += 1 / WORKERS
    assert len(bench.resident()) == WORKERS


def test_pings_of_a_hundred_workers_wake_the_loop_a_few_times_a_second() -> None:
    """However workers came, the moments at which one is asked are few: others go along."""
    bench = CoreBench({f"m{n}": 1.0 for n in range(WORKERS)}, 200.0)
    crowd(bench)
    moments: dict[float, int] = {}
    asked_at: dict[str, list[float]] = {}
    end = bench.now + LOOK_S
    while bench.now < end:
        bench.now = bench.core.next_deadline()
        effects = bench.give(TimePassed())
        pings = [e for e in effects if isinstance(e, SendToWorker) and isinstance(e.header, Ping)]
        moments[bench.now] = len(pings)
        for ping in pings:
            asked_at.setdefault(ping.worker, []).append(bench.now)
    assert len(moments) <= LOOK_S / ROUND_SHARE + 1
    assert len(asked_at) == WORKERS
    for times in asked_at.values():
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert max(gaps) <= 1 + 1e-6, "asked too late"
        assert min(gaps) >= 1 - ROUND_SHARE - 1e-6, "asked too often"


def test_prompt_that_is_cancelled_may_still_take_its_time() -> None:
    """The engine is in its pass until that ends, whatever became of the request meanwhile."""
    bench = CoreBench(
        {"a": 1.0},
        4.0,
        pong_timeout_s=1000,
        prefill_stall_s=50,
        decode_stall_s=10,
        cancel_timeout_s=5,
    )
    running, prompt = bench.generate("a"), bench.generate("a")
    bench.says("a", Chunk(id=running, seq=0, epoch=1, tokens=1), b"x")
    bench.slow.add("pong")
    bench.pass_time(20)
    bench.give(ClientSent(peer=PEER, header=Cancel(id=prompt)))
    bench.pass_time(25)
    assert bench.core.state.requests[prompt].phase is Phase.ended
    assert bench.core.state.workers["a"].state == "busy"
    bench.pass_time(10)
    assert bench.core.state.workers["a"].state == "lost"
