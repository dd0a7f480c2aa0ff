"""The prefix cache's pure decisions: names, matches, boundaries, evictions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dflashd.worker.cache.boundaries import boundaries, pass_end
from dflashd.worker.cache.eviction import StoredFile, Worth, cheapest, files_to_remove
from dflashd.worker.cache.identity import CacheIdentity, Fingerprint
from dflashd.worker.cache.prefixes import (
    LEAST_TOKENS,
    Candidate,
    Match,
    Query,
    best_match,
    common_prefix,
    covers,
)

IDENTITY = CacheIdentity(name="Org/Model.1", target_digest="a" * 64, draft_digest="b" * 64)
FINGERPRINT = Fingerprint(
    target_config="c",
    draft_config="d",
    quantisation="none",
    dtype="float32",
    layer_ids=(1, 2),
    draft_window=None,
    template="t",
    kv_quantisation="none",
    chunk_tokens=512,
    compute="mlx",
)
CHANGES = {
    "target_config": "x",
    "draft_config": None,
    "quantisation": "4",
    "dtype": "bfloat16",
    "layer_ids": (2, 1),
    "draft_window": 8,
    "template": "u",
    "kv_quantisation": "8",
    "chunk_tokens": 256,
    "compute": "mlx 2",
    "version": 99,
}


def tokens(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, np.int32)


def stored(length: int, key: str = "k", **changes: object) -> Candidate:
    values: dict[str, object] = {
        "key": key,
        "tokens": np.arange(length, dtype=np.int32),
        "trimmable": True,
        "has_draft": True,
        "aligned_tokens": 0,
        "logits_at": frozenset[int](),
    }
    return Candidate(**(values | changes))  # type: ignore[arg-type]


def asked(length: int, **changes: object) -> Query:
    values: dict[str, object] = {
        "tokens": np.arange(length, dtype=np.int32),
        "needs_draft": True,
    }
    return Query(**(values | changes))  # type: ignore[arg-type]


def test_identity_short_form_is_stable_and_safe() -> None:
    """The short form never changes between versions, and is a plain file name."""
    assert IDENTITY.short == "org-model-1-" + IDENTITY.short[-16:]
    assert CacheIdentity(name="", target_digest="a", draft_digest=None).short.startswith("model-")
    assert FINGERPRINT.short == replace(FINGERPRINT).short
    assert len(FINGERPRINT.short) == 16
    assert IDENTITY.short == "org-model-1-2d91e41092f64153"


def test_identity_names_weights_and_name() -> None:
    """Another name, other weights or another draft are another identity."""
    others = [
        replace(IDENTITY, name="Org/Model.2"),
        replace(IDENTITY, target_digest="e" * 64),
        replace(IDENTITY, draft_digest=None),
    ]
    assert len({IDENTITY.short, *(other.short for other in others)}) == 4


@pytest.mark.parametrize("field", CHANGES)
def test_fingerprint_covers_every_field(field: str) -> None:
    """Whatever changes in what a snapshot depends on gives another fingerprint."""
    assert set(CHANGES) == set(Fingerprint.__dataclass_fields__)
    changed = replace(FINGERPRINT, **{field: CHANGES[field]})
    assert changed.short != FINGERPRINT.short


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_prefix_is_the_longest(one: list[int], other: list[int]) -> None:
    """It counts equal first tokens, and stops at the first difference or end."""
    expected = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        expected += 1
    assert common_prefix(tokens(*one), tokens(*other)) == expected


def test_trimmable_state_serves_every_prefix() -> None:
    """A longer snapshot is cut to what is common; one row stays to be computed."""
    longer = stored(100)
    assert best_match([longer], asked(50)) == Match(key="k", rows=49, exact=False)
    assert best_match([longer], asked(150)) == Match(key="k", rows=100, exact=False)
    parted = asked(150, tokens=np.concatenate([np.arange(60), np.zeros(90)]).astype(np.int32))
    assert best_match([longer], parted) == Match(key="k", rows=60, exact=False)


def test_other_state_serves_its_own_end_only() -> None:
    """Recurrent state hits at exactly its boundary, and a miss says that this was it."""
    fixed = stored(100, trimmable=False)
    assert best_match([fixed], asked(150)) == Match(key="k", rows=100, exact=False)
    assert best_match([fixed], asked(50)) == "boundary"
    assert best_match([fixed], asked(100)) == "boundary"
    exact = stored(100, trimmable=False, logits_at=frozenset({100}))
    assert best_match([exact], asked(100)) == Match(key="k", rows=100, exact=True)
    beyond = stored(101, trimmable=False, logits_at=frozenset({100}))
    assert best_match([beyond], asked(100)) == "boundary", "its logits are there, its state is not"


def test_exact_hit_needs_the_logits_of_that_length() -> None:
    """All rows are reused only where the last logits are stored."""
    both = [stored(120, "long", logits_at=frozenset({100})), stored(110, "short")]
    assert best_match(both, asked(100)) == Match(key="long", rows=100, exact=True)
    assert best_match(both, asked(101)) == Match(key="long", rows=100, exact=False)


def test_draft_context_is_needed_by_drafting_requests_only() -> None:
    """A plain request's snapshot serves plain requests; a drafted one serves both."""
    plain = stored(100, has_draft=False)
    assert best_match([plain], asked(100)) == "no_draft"
    assert isinstance(best_match([plain], asked(100, needs_draft=False)), Match)
    assert isinstance(best_match([stored(100)], asked(100, needs_draft=False)), Match)


def test_aligned_reuse_is_whole_chunks_of_prefill() -> None:
    """Aligned, only rows that any cold run computes in the same pass are reused."""
    candidate = stored(100, aligned_tokens=64, logits_at=frozenset({100}))
    assert best_match([candidate], asked(100, align_tokens=32)) == Match(
        key="k", rows=64, exact=False
    )
    assert best_match([candidate], asked(64, align_tokens=32)) == Match(
        key="k", rows=32, exact=False
    )
    assert best_match([candidate], asked(30, align_tokens=32)) == "cold"


def test_little_in_common_is_a_cold_miss() -> None:
    """A few equal tokens are not worth a copy, and are no reason to name."""
    assert best_match([stored(100)], asked(LEAST_TOKENS)) == "cold"
    assert best_match([stored(100)], asked(9)) == Match(key="k", rows=8, exact=False)
    assert best_match([stored(9, trimmable=False)], asked(8)) == "boundary"
    assert best_match([stored(8, trimmable=False)], asked(7)) == "cold"
    assert best_match([], asked(100)) == "cold"
    assert best_match([stored(5, trimmable=False)], asked(4)) == "cold"


def test_longer_snapshots_take_the_place_of_their_prefixes() -> None:
    """Covered is what a longer trimmable snapshot serves as well; a draft's context counts."""
    assert covers(stored(100), stored(60))
    assert not covers(stored(60), stored(100))
    assert not covers(stored(100, trimmable=False), stored(60))
    assert not covers(stored(100, has_draft=False), stored(60))
    assert covers(stored(100), stored(60, has_draft=False))
    assert not covers(stored(100), stored(60, tokens=np.ones(60, np.int32)))
    assert covers(stored(60), stored(60))
    assert covers(stored(100, aligned_tokens=32), stored(60, aligned_tokens=32))
    assert not covers(stored(100, aligned_tokens=32), stored(60, aligned_tokens=48))


def test_best_of_several_leaves_the_least_to_compute() -> None:
    """An exact hit first, then the longest; among equals the first; what misses hides no hit."""
    exact = stored(50, "exact", logits_at=frozenset({50}))
    short, long, twin = stored(20, "short"), stored(49, "long"), stored(49, "twin")
    recurrent = stored(60, "recurrent", trimmable=False)
    found = best_match([short, long, twin, exact, recurrent], asked(50))
    assert found == Match(key="exact", rows=50, exact=True)
    found = best_match([short, long, twin, recurrent], asked(50))
    assert found == Match(key="long", rows=49, exact=False)
    assert best_match([recurrent, stored(0)], asked(50)) == "boundary"


@given(
    st.integers(1, 5000),
    st.sampled_from((16, 64, 512)),
    st.lists(st.integers(-5, 6000), max_size=3),
)
def test_boundaries_lie_inside_and_passes_end_at_them(
    prompt: int, chunk: int, turns: list[int]
) -> None:
    """Passes cover a prompt without gaps, none is longer than a chunk, and each boundary ends one.

    From a boundary on, the passes are those of a run from the begin: same start, same passes.
    """
    stops = boundaries(prompt, chunk, tuple(turns))
    assert all(0 < stop < prompt for stop in stops)
    assert {turn for turn in turns if 0 < turn < prompt} <= set(stops)
    ends = [0]
    while ends[-1] < prompt:
        ends.append(pass_end(ends[-1], prompt, chunk, stops))
        assert 0 < ends[-1] - ends[-2] <= chunk
    assert ends[-1] == prompt
    assert set(stops) <= set(ends)


def test_boundaries_are_every_eighth_chunk_and_the_last_two() -> None:
    """Widely spaced over a prompt, close at its end, at each turn; never at its end itself."""
    assert boundaries(50, 2, (5,)) == (5, 16, 32, 46, 48)
    assert boundaries(48, 2, (0, 48)) == (16, 32, 44, 46)
    assert boundaries(4, 2) == boundaries(3, 2) == (2,)
    assert boundaries(2, 2) == ()


def test_pass_ends_at_a_chunk_a_stop_or_the_end() -> None:
    """Whichever comes first behind the start; where it starts is no end."""
    ends = [pass_end(start, 10, 4, (3,)) for start in (0, 3, 4, 8)]
    assert ends == [3, 4, 8, 10]


def test_long_prompt_whose_end_changed_resumes_near_its_end() -> None:
    """Of 50,000 tokens with a new tail, all but the last two chunks are reused."""
    stops = boundaries(50_000, 512)
    changed_at = 49_500
    usable = max(stop for stop in stops if stop <= changed_at)
    assert changed_at - usable <= 2 * 512
    assert len(stops) <= 50_000 / (8 * 512) + 3


def test_costly_entries_outlive_cheap_ones_but_not_for_ever() -> None:
    """Cost per byte delays eviction; an entry that is never used goes all the same."""
    worths = {
        "cheap": Worth(cost_tokens=10, size_bytes=1000),
        "dear": Worth(cost_tokens=1000, size_bytes=1000),
    }
    for worth in worths.values():
        worth.renew(0.0)
    assert cheapest(worths.items()) == "cheap"
    worths["cheap"].renew(5.0)
    assert cheapest(worths.items()) == "dear"
    assert cheapest([]) is None


def test_large_entries_go_before_small_ones_of_equal_cost() -> None:
    """What counts is the cost for each byte; among equals the first goes, and nothing weighs 0."""
    worths = {
        name: Worth(cost_tokens=10, size_bytes=size)
        for name, size in (("small", 5), ("large", 10), ("as large", 10), ("empty", 0))
    }
    for worth in worths.values():
        worth.renew(1.0)
    assert {name: worth.credit for name, worth in worths.items()} == {
        "small": 3.0,
        "large": 2.0,
        "as large": 2.0,
        "empty": 11.0,
    }
    assert cheapest(worths.items()) == "large"


def test_unwanted_files_go_first_then_the_longest_unused() -> None:
    """Files of models that are gone give room before any other, however new they are."""

    def file(path: str, used: float, *, wanted: bool = True) -> StoredFile:
        return StoredFile(path=path, size_bytes=10, used_at_s=used, wanted=wanted)

    files = [file("new", 3), file("old", 1), file("gone", 9, wanted=False), file("mid", 2)]
    assert [f.path for f in files_to_remove(files, 40)] == []
    assert [f.path for f in files_to_remove(files, 39)] == ["gone"]
    assert [f.path for f in files_to_remove(files, 30)] == ["gone"]
    assert [f.path for f in files_to_remove(files, 15)] == ["gone", "old", "mid"]
    assert len(files_to_remove(files, 0)) == 4
