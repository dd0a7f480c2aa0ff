"""Managers and their registry: side by side, replaced, retired, stuck."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dflashd.protocol.messages import CacheSettings
from dflashd.worker.cache.manager import CacheManager, CacheStuck, Hit
from dflashd.worker.cache.prefixes import Query
from dflashd.worker.cache.registry import CacheRegistry
from dflashd.worker.cache.snapshot_file import Payload

from .cache_states import FINGERPRINT, identity, same, settings, snapshot

RAM = CacheSettings()


def resolve(registry: CacheRegistry, name: str = "m", **changes: object) -> CacheManager:
    manager = registry.resolve(identity(name), FINGERPRINT, RAM, **changes)  # type: ignore[arg-type]
    assert manager is not None
    return manager


def ask(manager: CacheManager, length: int) -> Hit | str:
    return manager.lookup(Query(tokens=np.arange(length, dtype=np.int32), needs_draft=False))


def test_identities_live_side_by_side() -> None:
    """Asking for one model leaves the other's cache as it was; current is the last resolved."""
    registry = CacheRegistry()
    one, two = resolve(registry, "one"), resolve(registry, "two")
    one.store(snapshot(30), durable=True)
    assert isinstance(ask(one, 40), Hit)
    assert ask(two, 40) == "cold"
    assert registry.current() is two
    assert resolve(registry, "one") is one
    assert registry.current() is one
    assert registry.managers == (one, two)


def test_another_fingerprint_or_setting_replaces_one_manager_only() -> None:
    """The changed one is retired and replaced, every other is the same object as before."""
    registry = CacheRegistry()
    other = resolve(registry, "other")
    before = resolve(registry)
    for fingerprint, chosen in (
        (replace(FINGERPRINT, template="u"), RAM),
        (FINGERPRINT, RAM),
        (FINGERPRINT, CacheSettings(ram_bytes=5)),
    ):
        after = registry.resolve(identity(), fingerprint, chosen)
        assert after is not None
        assert after is not before
        assert before.state == "retired"
        assert registry.resolve(identity(), fingerprint, chosen) is after
        before = after
    assert registry.resolve(identity(), FINGERPRINT, CacheSettings(enabled=False)) is None
    assert before.state == "retired"
    assert resolve(registry, "other") is other
    assert other.is_open


def test_shutdown_of_one_and_of_all() -> None:
    """One retires alone; all retire together; unknown ones are no error."""
    registry = CacheRegistry()
    one, two = resolve(registry, "one"), resolve(registry, "two")
    registry.shutdown(two.identity)
    assert (one.state, two.state) == ("open", "retired")
    assert registry.current() is None
    registry.shutdown(identity("nobody"))
    registry.shutdown()
    assert one.state == "retired"
    assert registry.managers == ()


def test_manager_is_retired_by_the_last_of_its_holders() -> None:
    """Models that hold one cache go one by one; who held an earlier one leaves its heir alone."""
    registry = CacheRegistry()
    shared = resolve(registry)
    assert resolve(registry) is shared
    registry.release(shared)
    assert shared.is_open
    registry.release(shared)
    assert shared.state == "retired"
    assert registry.managers == ()
    assert registry.current() is None
    heir = resolve(registry)
    registry.release(shared)
    assert registry.managers == (heir,)
    assert registry.current() is heir
    assert heir.is_open


def test_retired_manager_is_safe_to_carry() -> None:
    """A request that still holds it misses and stores nothing; nothing is raised."""
    manager = resolve(CacheRegistry())
    manager.store(snapshot(30), durable=True)
    manager.retire()
    assert ask(manager, 40) == "retired"
    manager.store(snapshot(30), durable=True)
    report = manager.report()
    assert report.ram_bytes == 0
    assert report.misses == {"retired": 1}
    assert report.not_stored == {"retired": 1}


def test_failed_shutdown_is_told_and_tried_again(tmp_path: Path) -> None:
    """A writer that hangs makes the shutdown fail and stay listed; the others are retired."""
    registry = CacheRegistry()
    disk = settings(tmp_path)
    manager, other = resolve(registry, "m", disk=disk), resolve(registry, "other")
    assert manager._disk is not None
    hang, entered = threading.Event(), threading.Event()

    def hanging(data: Payload) -> str | None:
        entered.set()
        hang.wait(20)
        return None

    manager._disk.writer._store = hanging
    manager.store(snapshot(30), durable=True)
    assert entered.wait(10)
    with pytest.raises(CacheStuck, match="the cache of m still writes"):
        registry.shutdown(timeout_s=0.05)
    assert (manager.state, other.state) == ("stuck", "retired")
    assert registry.stuck == (manager,)
    assert registry.managers == ()
    successor = resolve(registry, "m", disk=disk)
    assert successor.report().disk.startswith("this process writes to this cache already")
    hang.set()
    registry.shutdown(identity("m"), timeout_s=10)
    assert registry.stuck == ()
    assert manager.state == "retired"


def test_memory_budget_and_report() -> None:
    """Bytes stay below the budget, evictions are counted, too large ones are refused by name."""
    size = snapshot(30).nbytes
    manager = CacheManager(identity(), FINGERPRINT, CacheSettings(ram_bytes=3 * size), None)
    for first in range(100, 106):
        manager.store(snapshot([first, *range(29)]), durable=True)
        assert manager.report().ram_bytes <= 3 * size
    manager.store(snapshot(500), durable=True)
    report = manager.report()
    assert report.evictions == 3
    assert report.ram_entries == 3
    assert report.not_stored == {"too_large": 1}
    assert report.ram_bytes == 3 * size
    assert report.disk == "off"


def test_growing_conversation_keeps_one_snapshot_and_its_logits() -> None:
    """A prefix of a newer snapshot gives its place up, and exact hits on it stay possible."""
    manager = CacheManager(identity(), FINGERPRINT, RAM, None)
    manager.store(snapshot(20, logits=20), durable=True)
    manager.store(snapshot(30), durable=True)
    manager.store(snapshot(25, logits=25), durable=True)
    report = manager.report()
    assert report.ram_entries == 1
    assert report.superseded == 1
    for length in (20, 25):
        hit = ask(manager, length)
        assert isinstance(hit, Hit)
        assert (hit.kind, hit.rows) == ("l1_exact", length)
    hit = ask(manager, 24)
    assert isinstance(hit, Hit)
    assert (hit.kind, hit.rows) == ("l1_prefix", 23)


def test_restart_hits_the_disk_then_memory(tmp_path: Path) -> None:
    """A new manager finds what the old one wrote, and reads each file once."""
    kept = snapshot(30, logits=30)
    first = CacheManager(identity(), FINGERPRINT, RAM, settings(tmp_path))
    first.store(kept, durable=True)
    first.retire(10)
    second = CacheManager(identity(), FINGERPRINT, RAM, settings(tmp_path))
    hits = [ask(second, 30) for _ in range(2)]
    assert all(isinstance(hit, Hit) and same(hit.snapshot, kept) for hit in hits)
    assert second.report().hits == {"l2_exact": 1, "l1_exact": 1}
    second.clear()
    assert ask(second, 30) == "cold"
    assert second.report().disk_entries == 0


def test_unusable_disk_leaves_memory(tmp_path: Path) -> None:
    """A directory that cannot be made is a visible reason, not an error."""
    (tmp_path / "file").write_text("")
    manager = CacheManager(identity(), FINGERPRINT, RAM, settings(tmp_path / "file"))
    manager.store(snapshot(30), durable=True)
    assert isinstance(ask(manager, 30), Hit)
    assert manager.report().disk.startswith("off: ")


@pytest.mark.parametrize("seed", range(20))
def test_any_order_keeps_identities_apart(seed: int, tmp_path: Path) -> None:
    """Under random stores, replacements and shutdowns, a hit is always the model's own content."""
    chance = random.Random(seed)
    registry = CacheRegistry()
    names = ("a", "b", "c")
    carried: list[tuple[str, CacheManager]] = []
    for _ in range(60):
        name = chance.choice(names)
        content = [ord(name), *range(20)]
        match chance.randrange(5):
            case 0 | 1:
                carried.append((name, resolve(registry, name, disk=settings(tmp_path))))
            case 2 if carried:
                name, manager = chance.choice(carried)
                manager.store(snapshot([ord(name), *range(20)]), durable=True)
            case 3:
                registry.shutdown(identity(name), timeout_s=10)
            case _:
                for owner, manager in carried:
                    tokens = np.array(content, np.int32)
                    found = manager.lookup(Query(tokens=tokens, needs_draft=False))
                    if isinstance(found, Hit):
                        assert manager.is_open
                        assert owner == name
                        assert found.snapshot.tokens[0] == ord(owner)
    registry.shutdown(timeout_s=10)
    assert all(not manager.is_open for _, manager in carried)
