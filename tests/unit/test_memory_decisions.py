"""Admission and eviction over plain values: the promises hold for every state of memory."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec import structs

from dflashd.protocol.messages import LoadedBody
from dflashd.supervisor.core.facts import PROCESS_BYTES, ModelFacts, Weights
from dflashd.supervisor.core.holdings import (
    Holdings,
    Resident,
    Slot,
    corrected,
    estimate,
    sizes,
)
from dflashd.supervisor.core.memory import (
    Admit,
    Decision,
    Evict,
    Never,
    Wait,
    decide,
    evictable,
    relief,
)

GB = 10**9
MB = 10**6
P = PROCESS_BYTES
T = Weights(key="t", size_bytes=100 * GB)


def model(name: str, own: int = 0, *, slot: str = "", at: float = 0.0, **fields: Any) -> Resident:
    """A ready resident in a worker of its own; ``own`` in GB."""
    resident = Resident(
        name=name, slot=slot or name, weights=(), own_bytes=own * GB, state="ready", last_used_at=at
    )
    return structs.replace(resident, **fields)


def holdings(pool: int, *residents: Resident, slots: tuple[Slot, ...] = ()) -> Holdings:
    """``pool`` in GB beside one process for each resident and one for the asked."""
    workers = len({r.slot for r in residents} | {s.name for s in slots}) + 1
    return Holdings(
        residents=residents,
        slots={s.name: s for s in slots},
        pool_bytes=pool * GB + workers * PROCESS_BYTES,
    )


def victims(decision: Decision) -> list[str]:
    assert isinstance(decision, Evict), decision
    return [victim.name for victim in decision.victims]


ASKED = model("new", 100, state="loading", wanted=True)


def test_what_fits_is_admitted_with_the_sum() -> None:
    """A load into free memory starts at once, and its reservation is the sum of all parts."""
    decision = decide(ASKED, holdings(200, model("a", 100)))
    assert decision == Admit(reserved_bytes=200 * GB + 2 * P)


def test_least_recently_used_goes_first_and_alone_if_that_suffices() -> None:
    """Of several idle models the one unused for longest leaves, and no more than needed."""
    full = holdings(250, model("a", 100, at=3), model("b", 100, at=1))
    assert victims(decide(ASKED, full)) == ["b"]


def test_nobody_leaves_whose_leaving_does_not_help() -> None:
    """An old small model stays when a newer large one has to go and suffices."""
    full = holdings(160, model("small", 10, at=1), model("large", 150, at=2))
    assert victims(decide(ASKED, full)) == ["large"]


@pytest.mark.parametrize(
    ("hold", "said"),
    [
        ({"leased": True}, "serving requests"),
        ({"wanted": True}, "wanted by waiting requests"),
        ({"fresh": True}, "loaded only just now"),
        ({"state": "loading", "wanted": True}, "loading"),
    ],
)
def test_the_protected_are_waited_for_by_name(hold: dict[str, Any], said: str) -> None:
    """Who cannot be evicted now is named with the reason, and only who stands in the way."""
    full = holdings(150, model("busy", 100, **hold), model("other", 10, leased=True))
    decision = decide(ASKED, full)
    assert isinstance(decision, Wait)
    assert decision.held_by == ("busy",)
    assert f"busy is {said}" in decision.reason
    assert "new needs 100.1 GB" in decision.reason


def test_who_is_waited_for_is_no_more_than_has_to_go() -> None:
    """What is idle counts as gone; of those in the way only the longest unused are named."""
    later = model("later", 100, at=2, leased=True)
    sooner = model("sooner", 100, at=1, leased=True)
    decision = decide(ASKED, holdings(200, later, sooner, model("idle", 50, at=3)))
    assert isinstance(decision, Wait)
    assert decision.held_by == ("sooner",)


def test_a_crowd_in_the_way_is_counted() -> None:
    """Four are named; how many more there are is said in a number."""
    crowd = [model(name, 10, leased=True) for name in "abcdef"]
    decision = decide(ASKED, holdings(100, *crowd))
    assert isinstance(decision, Wait)
    assert decision.reason.endswith("c is serving requests, d is serving requests and 2 more")
    decision = decide(ASKED, holdings(100, *crowd[:4]))
    assert isinstance(decision, Wait)
    assert decision.reason.endswith("d is serving requests")


def test_a_load_nobody_waits_for_goes_before_what_is_idle() -> None:
    """An abandoned load is given up for one that is wanted."""
    full = holdings(200, model("idle", 100, at=1), model("left", 100, at=9, state="loading"))
    decision = decide(ASKED, full)
    assert isinstance(decision, Evict)
    assert [(v.name, v.reason) for v in decision.victims] == [("left", "load_unwanted")]


def test_room_that_is_being_made_is_not_made_twice() -> None:
    """While a victim leaves nobody else is evicted; a worker without models counts as leaving."""
    decision = decide(ASKED, holdings(200, model("a", 100, state="leaving"), model("b", 100)))
    assert isinstance(decision, Wait)
    assert decision.held_by == ("a",)
    ending = Slot(name="gone", measured_bytes=P + 150 * GB, settled_bytes=P + 150 * GB)
    decision = decide(ASKED, holdings(200, model("b", 100), slots=(ending,)))
    assert isinstance(decision, Wait)
    assert "worker gone" in decision.reason
    three = [model(name, 40, state="leaving") for name in "cab"]
    decision = decide(ASKED, holdings(120, *three))
    assert isinstance(decision, Wait)
    assert decision.held_by == ("a", "b", "c")
    assert "a, b, c are leaving" in decision.reason


def test_what_can_never_fit_is_refused_with_both_numbers() -> None:
    """Larger than the pool, or than what pinned models leave, is an error and no wait."""
    decision = decide(ASKED, holdings(50))
    assert isinstance(decision, Never)
    assert "new needs 100.1 GB, the memory pool has 50.1 GB" in decision.reason
    decision = decide(ASKED, holdings(150, model("p", 100, pinned=True)))
    assert isinstance(decision, Never)
    assert "pinned models (p)" in decision.reason
    exact = replace(holdings(0, model("p", 100, pinned=True)), pool_bytes=P + 100 * GB)
    decision = decide(ASKED, exact)
    assert isinstance(decision, Never)
    assert "pinned models (p)" in decision.reason, "alone it would fit, to the byte"
    retired = model("p", 100, pinned=True, state="leaving")
    assert isinstance(decide(ASKED, holdings(150, retired)), Wait)
    beside = holdings(150, retired, model("busy", 100, leased=True))
    assert isinstance(decide(ASKED, beside), Wait), "what was pinned and leaves is no obstacle"


def test_members_of_a_group_count_equal_weights_once() -> None:
    """A model whose target is in its group counts only the rest; elsewhere it counts whole."""
    resident = model("a", 10, slot="g", weights=(T,))
    asked = model("b", 20, slot="g", weights=(T,), state="loading")
    assert decide(asked, holdings(130, resident)) == Admit(reserved_bytes=P + 130 * GB)
    apart = structs.replace(asked, slot="b")
    assert victims(decide(apart, holdings(130, resident))) == ["a"]


def test_evicting_one_of_two_that_share_frees_only_its_own() -> None:
    """Shared weights stay until the last model that has them goes."""
    a = model("a", 10, slot="g", weights=(T,), at=1)
    b = model("b", 10, slot="g", weights=(T,), at=2)
    assert victims(decide(ASKED, holdings(110, a, b))) == ["a", "b"]
    assert victims(decide(model("new", 10), holdings(120, a, b))) == ["a"]


def test_evicting_from_ones_own_group_does_not_end_its_worker() -> None:
    """Where a group gives room to its own member its process stays, and the member counts."""
    asked = model("b", 100, slot="g", state="loading")
    a, other = model("a", 60, slot="g", at=1), model("other", 60, at=2)
    held = replace(holdings(0, a, other), pool_bytes=2 * P + 130 * GB)
    assert victims(decide(asked, held)) == ["a", "other"]


def test_what_a_worker_is_seen_to_hold_counts() -> None:
    """Measured memory beyond the estimate counts, beside a load in the same worker too."""
    grown = Slot(name="a", measured_bytes=P + 150 * GB, settled_bytes=P + 150 * GB)
    held = holdings(0, model("a", 100), slots=(grown,))
    assert held.reserved_bytes() == P + 150 * GB
    asked = model("b", 30, slot="a", state="loading")
    assert held.reserved_bytes(asked=asked) == P + 180 * GB
    loading = replace(held, residents=(*held.residents, asked))
    assert loading.reserved_bytes() == P + 180 * GB, "the same once it loads"
    rising = Slot(name="a", measured_bytes=P + 150 * GB)
    risen = holdings(0, model("a", 100), model("b", 20, slot="a"), slots=(rising,))
    assert risen.reserved_bytes() == P + 150 * GB, "in the middle of a load too"
    assert risen.reserved_bytes(without=frozenset("b")) == P + 100 * GB, "it will be measured anew"


def test_a_load_reports_its_weights_and_they_replace_the_estimate() -> None:
    """After a load the weights are what the worker says; less frees room, requests keep theirs."""
    facts = ModelFacts(
        weights=(T, Weights(key="d", size_bytes=10 * GB)), cast_bytes=5, requests_bytes=7
    )
    loaded = LoadedBody(
        digest="",
        engine="dflash",
        block_tokens=4,
        context_tokens=1,
        memory_bytes=80 * GB,
        device="cpu",
        dtype="float32",
    )
    found = corrected(facts, loaded)
    assert [w.size_bytes for w in found.weights] == [70 * GB, 10 * GB]
    assert found.own_bytes == 7


def test_unknown_models_count_as_half_the_pool_but_are_never_kept_out() -> None:
    """A model not yet on the disk waits and evicts like a large one, and is no reason to refuse."""
    weights, own, guessed = sizes(ModelFacts(unknown="not here"), 400 * GB)
    unknown = Resident(
        name="u", slot="u", weights=weights, own_bytes=own, state="loading", guessed=guessed
    )
    assert own == 200 * GB
    assert victims(decide(unknown, holdings(250, model("a", 100)))) == ["a"]
    pinned = holdings(250, model("a", 240, pinned=True))
    assert isinstance(decide(unknown, pinned), Admit)


def test_relief_unloads_idle_models_when_workers_grew() -> None:
    """Growth beyond the pool evicts what is idle until it fits, and nothing when it cannot."""
    grown = Slot(name="a", measured_bytes=P + 200 * GB, settled_bytes=P + 200 * GB)
    a, b = model("a", 100, leased=True), model("b", 100)
    held = replace(holdings(0, a, b, slots=(grown,)), pool_bytes=2 * P + 250 * GB)
    assert victims(relief(held) or Admit(reserved_bytes=0)) == ["b"]
    assert relief(replace(held, pool_bytes=2 * P + 300 * GB)) is None
    assert relief(replace(held, pool_bytes=P)) is None


# --- every state of memory ------------------------------------------------------------------

KEYS = ("t1", "t2", "d1")
SIZE = {"t1": 5, "t2": 9, "d1": 2}
SLOTS = ("x", "y", "z")


@st.composite
def residents(draw: st.DrawFn, name: str, *, asked: bool = False) -> Resident:
    keys = draw(st.lists(st.sampled_from(KEYS), max_size=2, unique=True))
    flags = {key: draw(st.booleans()) for key in ("pinned", "leased", "wanted", "fresh")}
    state = "loading" if asked else draw(st.sampled_from(("ready", "ready", "loading", "leaving")))
    return Resident(
        name=name,
        slot=draw(st.sampled_from(SLOTS)),
        weights=tuple(Weights(key=k, size_bytes=SIZE[k] * MB) for k in keys),
        own_bytes=draw(st.integers(0, 12)) * MB,
        state=state,
        last_used_at=draw(st.integers(0, 3)),
        guessed=asked and not keys and draw(st.booleans()),
        **(flags if not asked else {}),
    )


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Resident, Holdings]:
    names = draw(st.lists(st.sampled_from("abcde"), max_size=5, unique=True))
    slots: dict[str, Slot] = {}
    for slot in draw(st.lists(st.sampled_from(SLOTS), unique=True)):
        measured = PROCESS_BYTES + draw(st.integers(0, 30)) * MB
        settled = PROCESS_BYTES + draw(st.integers(0, 30)) * MB
        slots[slot] = Slot(name=slot, measured_bytes=measured, settled_bytes=settled)
    pool = draw(st.integers(1, 4)) * PROCESS_BYTES + draw(st.integers(-20, 60)) * MB
    held = Holdings(
        residents=tuple(draw(residents(name)) for name in names), slots=slots, pool_bytes=pool
    )
    return draw(residents("new", asked=True)), held


RANK = {Admit: 0, Evict: 1, Wait: 2, Never: 3}


@given(world=worlds())
def test_admitted_memory_never_exceeds_the_pool(world: tuple[Resident, Holdings]) -> None:
    """After an admission the sum of all reservations, and what was measured, is in the pool."""
    asked, held = world
    decision = decide(asked, held)
    if isinstance(decision, Admit):
        assert decision.reserved_bytes <= held.pool_bytes
        if not asked.guessed:
            after = replace(held, residents=(*held.residents, asked))
            assert after.reserved_bytes() == decision.reserved_bytes
        assert sum(slot.measured_bytes for slot in held.slots.values()) <= held.pool_bytes


@given(world=worlds())
def test_only_the_unprotected_are_evicted_and_just_enough(
    world: tuple[Resident, Holdings],
) -> None:
    """Victims are never protected or leaving, they suffice, and none of them is spared in vain."""
    asked, held = world
    decision = decide(asked, held)
    if not isinstance(decision, Evict):
        return
    by_name = {r.name: r for r in held.residents}
    chosen = {v.name for v in decision.victims}
    assert chosen
    for name in chosen:
        resident = by_name[name]
        held_by = {resident.pinned, resident.leased, resident.wanted, resident.state == "leaving"}
        assert held_by == {False}
        assert resident.state == "loading" or not resident.fresh
    # Again, once they and all that was leaving are gone: it fits; without any one of them not.
    settled = tuple(r for r in held.residents if r.state != "leaving")
    if any(s.measured_bytes > estimate([]) for s in held.slots.values()) or asked.guessed:
        return
    assert isinstance(decide(asked, _with_only(held, asked, settled, chosen)), Admit)
    for name in chosen:
        assert not isinstance(
            decide(asked, _with_only(held, asked, settled, chosen - {name})), Admit
        )


def _with_only(
    held: Holdings, asked: Resident, settled: tuple[Resident, ...], gone: set[str]
) -> Holdings:
    """What is held once those that are gone, and workers that they leave empty, are gone."""
    residents = tuple(r for r in settled if r.name not in gone)
    slots = {r.slot for r in residents} | ({asked.slot} & held.slots.keys())
    return replace(held, residents=residents, slots={n: Slot(name=n) for n in slots})


@given(world=worlds())
def test_evicting_when_told_leads_to_admission(world: tuple[Resident, Holdings]) -> None:
    """Doing what is said, and measuring what the estimate says, ends in an admission."""
    asked, held = world
    for _ in range(len(held.residents) + 2):
        decision = decide(asked, held)
        if not isinstance(decision, Evict):
            break
        gone = {v.name for v in decision.victims}
        left = tuple(r for r in held.residents if r.name not in gone and r.state != "leaving")
        used = {r.slot for r in left}
        held = replace(held, residents=left, slots={n: Slot(name=n) for n in used})
    else:
        pytest.fail("evictions without end")
    first = decide(asked, world[1])
    if isinstance(first, Evict):
        assert isinstance(decide(asked, held), Admit)


@given(world=worlds(), more=st.integers(1, 50))
def test_more_room_never_makes_it_worse(world: tuple[Resident, Holdings], more: int) -> None:
    """With a larger pool a decision stays or improves, and never evicts more models."""
    asked, held = world
    if asked.guessed:
        return  # a guess grows with the pool
    before = decide(asked, held)
    after = decide(asked, replace(held, pool_bytes=held.pool_bytes + more * MB))
    assert RANK[type(after)] <= RANK[type(before)] or isinstance(before, Evict)
    if isinstance(before, Evict):
        assert isinstance(after, Admit | Evict | Wait)
        if isinstance(after, Wait):
            assert any(r.state == "leaving" for r in held.residents) or held.slots


@given(world=worlds())
def test_a_wait_names_whom_it_waits_for(world: tuple[Resident, Holdings]) -> None:
    """Those named are held or leaving, and the reason names the model that waits."""
    asked, held = world
    decision = decide(asked, held)
    if isinstance(decision, Wait):
        named = {r.name: r for r in held.residents}
        for name in decision.held_by:
            if name in named:
                assert named[name].hold or named[name].state == "leaving"
        assert asked.name in decision.reason
    if isinstance(decision, Never):
        assert "new needs" in decision.reason


def test_all_small_states_keep_the_order() -> None:
    """Of every mix of three idle or held models, a longer idle one never outlives its better."""
    for flags in itertools.product((False, True), repeat=3):
        here = [
            model(n, 50, at=i, leased=f) for i, (n, f) in enumerate(zip("abc", flags, strict=True))
        ]
        idle = [r.name for r in evictable(here)]
        for pool in range(50, 260, 10):
            decision = decide(model("new", 50), holdings(pool, *here))
            if isinstance(decision, Evict):
                gone = [v.name for v in decision.victims]
                assert gone == idle[: len(gone)], (flags, pool)
