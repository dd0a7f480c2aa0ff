"""What is booked of each client, and what that leaves to it."""

from __future__ import annotations

from dflashd.supervisor.core.shares import Room, Share, Shares


def told(share: Share) -> tuple[int, int, dict[str, int]]:
    return share.requests, share.prompt_bytes, {name: n for name, n in share.models.items() if n}


def test_share_is_what_waits_and_nothing_else() -> None:
    """Each request is booked once under its client and its model, and taken off as it was."""
    shares = Shares()
    assert told(shares.of("me")) == (0, 0, {})
    shares.add("me", "a", 10)
    shares.add("me", "b", 7)
    shares.add("you", "a", 1)
    assert told(shares.of("me")) == (2, 17, {"a": 1, "b": 1})
    shares.remove("me", "a", 10)
    assert told(shares.of("me")) == (1, 7, {"b": 1})
    shares.remove("me", "b", 7)
    assert told(shares.of("me")) == (0, 0, {})
    assert len(shares) == 1


def test_full_room_has_nothing_for_anybody() -> None:
    """One request of a model, of all, or one byte more than there is: nobody gets in."""
    assert not Room(model_requests=1, requests=1, prompt_bytes=5).has_none_for(5)
    assert Room(model_requests=0, requests=1, prompt_bytes=5).has_none_for(5)
    assert Room(model_requests=1, requests=0, prompt_bytes=5).has_none_for(5)
    assert Room(model_requests=1, requests=1, prompt_bytes=5).has_none_for(6)
