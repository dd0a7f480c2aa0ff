"""L2: files that survive the round trip, damage, quotas, other processes and full disks."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from dflashd.worker.cache import snapshot_file
from dflashd.worker.cache.disk import READ_ONLY, READ_ONLY_HERE, DiskStore
from dflashd.worker.cache.quota import WRITER_LOCK, FileLock, Quota
from dflashd.worker.cache.snapshot_file import SUFFIX, Payload
from dflashd.worker.cache.writer import Writer

from .cache_states import FINGERPRINT, identity, same, settings, snapshot


def store(root: Path, name: str = "m", **changes: object) -> DiskStore:
    return DiskStore(identity(name), FINGERPRINT, settings(root, **changes))


def filled(root: Path, *lengths: int) -> DiskStore:
    """A store with snapshots of different conversations on disk."""
    disk = store(root)
    for length in lengths:
        assert disk.put(snapshot([length, *range(length - 1)]))
    assert disk.writer.flush(10)
    disk.refresh()
    return disk


def only_file(disk: DiskStore) -> Path:
    (path,) = disk.folder.glob(f"*{SUFFIX}")
    return path


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_round_trip_is_bit_for_bit(tmp_path: Path, dtype: mx.Dtype) -> None:
    """Every dtype comes back as it was, draft context and logits included."""
    kept = snapshot(40, dtype=dtype, draft=True, logits=33)
    disk = store(tmp_path)
    assert disk.put(kept)
    assert disk.writer.flush(10)
    disk.close(5)
    again = store(tmp_path)
    (candidate,) = again.candidates()
    assert candidate.key == kept.key
    assert candidate.logits_at == {33}
    assert candidate.has_draft
    read = again.get(kept.key)
    assert read is not None
    assert same(read, kept)
    assert oct(again.folder.stat().st_mode)[-3:] == "700"
    assert oct(only_file(again).stat().st_mode)[-3:] == "600"


def test_quantised_state_and_strange_values_survive(tmp_path: Path) -> None:
    """Packed integers, NaN, infinities and negative zero keep their bits."""
    strange = mx.array([float("nan"), float("inf"), -0.0, 1e-45])
    kept = snapshot(9)
    layer = kept.target[0]
    odd = type(layer)(
        kind="QuantizedKVCache",
        numbers=(32, 4),
        arrays=(mx.array([[1, 2**32 - 1]], mx.uint32), strange, strange.astype(mx.bfloat16), None),
        trimmable=True,
        rows=9,
        parts=(layer,),
    )
    kept = type(kept)(tokens=kept.tokens, target=(odd,), draft=None, logits={}, aligned_tokens=4)
    disk = store(tmp_path)
    assert disk.put(kept)
    assert disk.writer.flush(10)
    read = disk.get(kept.key)
    assert read is not None
    assert same(read, kept)
    assert read.target[0].arrays[3] is None
    assert read.aligned_tokens == 4


@pytest.mark.parametrize("seed", range(12))
def test_damaged_file_costs_a_miss(tmp_path: Path, seed: int) -> None:
    """One byte changed anywhere, or the file cut anywhere: it is removed, counted, and no error."""
    disk = filled(tmp_path, 50)
    path, random = only_file(disk), np.random.default_rng(seed)
    content = bytearray(path.read_bytes())
    if seed % 3:
        at = int(random.integers(0, len(content) if seed % 3 == 1 else 600))
        content[at] ^= 1 << int(random.integers(0, 8))
    else:
        del content[int(random.integers(0, len(content))) :]
    path.write_bytes(content)
    disk.close(5)
    again = store(tmp_path)
    keys = [candidate.key for candidate in again.candidates()]
    assert all(again.get(key) is None for key in keys)
    assert again.bad_files.total() == 1
    assert not path.exists()
    assert len(again) == 0


def test_foreign_files_are_removed(tmp_path: Path) -> None:
    """A file of another program, of another namespace or under another name is not served."""
    disk = filled(tmp_path, 50)
    source = only_file(disk)
    (disk.folder / f"{'0' * 32}{SUFFIX}").write_bytes(source.read_bytes())
    (disk.folder / f"mine{SUFFIX}").write_bytes(b"hello")
    other = store(tmp_path, "other")
    (other.folder / source.name).write_bytes(source.read_bytes())
    (other.folder / "notes.txt").write_text("left alone")
    other.refresh()
    assert other.bad_files == {"it was not written for this cache": 1}
    assert (other.folder / "notes.txt").exists()
    disk.refresh()
    assert disk.get("0" * 32) is None
    assert disk.bad_files.total() == 2
    assert disk.get(source.name.removesuffix(SUFFIX)) is not None


def test_two_models_share_a_root(tmp_path: Path) -> None:
    """Namespaces keep models, weights and fingerprints apart; each has its writer."""
    one, two = store(tmp_path, "one"), store(tmp_path, "two")
    for disk in (one, two):
        assert disk.put(snapshot(20))
        assert disk.writer.flush(10)
        disk.refresh()
        assert len(disk) == 1
        assert not disk.reason
    assert one.folder != two.folder


def test_only_its_own_folders_are_made_private(tmp_path: Path) -> None:
    """What prompts were is nobody else's to read; a root that was there before, perhaps a disk that
    others use, keeps its permissions.
    """
    (there := tmp_path / "there").mkdir(mode=0o755)
    for root in (there, tmp_path / "made"):
        disk = store(root)
        assert stat.S_IMODE(disk.folder.parent.stat().st_mode) == 0o700
        assert disk.close(10)
    assert stat.S_IMODE(there.stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700


def test_second_writer_reads_only(tmp_path: Path) -> None:
    """Who comes second to a namespace sees new files, says who writes, and writes once it may."""
    first, second = store(tmp_path), store(tmp_path)
    assert not first.reason
    assert second.reason == READ_ONLY_HERE
    assert first.put(snapshot(20))
    assert first.writer.flush(10)
    second.refresh()
    assert len(second) == 1
    assert not second.put(snapshot([9, 9, 9]))
    assert second.writer.dropped == {"read_only": 1}
    first.close(5)
    assert second.put(snapshot([9, 9, 9]))
    assert second.writer.flush(10)
    assert not second.reason


def test_lock_ends_with_its_process(tmp_path: Path) -> None:
    """A writer that was killed leaves no lock and no half-written file behind."""
    before = store(tmp_path)
    folder = before.folder
    before.close(5)
    code = (
        "import fcntl,os,sys,time\n"
        f"fd=os.open({str(folder / WRITER_LOCK)!r},os.O_RDWR|os.O_CREAT)\n"
        "fcntl.flock(fd,fcntl.LOCK_EX)\nprint('held',flush=True)\ntime.sleep(60)"
    )
    lock = FileLock(folder / WRITER_LOCK)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        (folder / ".part-left").write_bytes(b"half")
        assert not lock.take()
        assert store(tmp_path).reason == READ_ONLY
        child.kill()
    disk = store(tmp_path)
    assert not disk.reason
    assert not (folder / ".part-left").exists()


def test_what_a_longer_snapshot_covers_is_removed(tmp_path: Path) -> None:
    """A conversation that grows keeps one file, and a prefix of it is not written again."""
    disk = store(tmp_path)
    for length in (20, 30, 40):
        assert disk.put(snapshot(length))
        assert disk.writer.flush(10)
        disk.refresh()
    assert [len(candidate.tokens) for candidate in disk.candidates()] == [40]
    assert disk.put(snapshot(30))
    assert disk.writer.flush(10)
    assert disk.writer.written == 3


def test_quota_of_a_model_removes_the_longest_unused(tmp_path: Path) -> None:
    """A model's files stay below its bytes; what was used last stays."""
    disk = filled(tmp_path, 60, 61, 62)
    size = max(path.stat().st_size for path in disk.folder.glob(f"*{SUFFIX}"))
    keys = [candidate.key for candidate in disk.candidates()]
    for age, key in enumerate(reversed(keys)):
        os.utime(disk.folder / f"{key}{SUFFIX}", (1e9 + age, 1e9 + age))
    disk.close(5)
    small = store(tmp_path, model_bytes=3 * size)
    assert small.get(keys[-1]) is not None
    assert small.put(snapshot(63))
    assert small.writer.flush(10)
    small.refresh()
    left = {candidate.key for candidate in small.candidates()}
    assert keys[-1] in left
    assert len(left) < 4
    assert small.removed >= 1
    assert small.put(snapshot(60_000))
    assert small.writer.flush(10)
    assert small.writer.dropped["too_large"] == 1


def test_looking_for_room_takes_nobody_s_place(tmp_path: Path) -> None:
    """Whether a directory is written to is asked without keeping its lock."""
    ours, idle = tmp_path / "a" / "f", tmp_path / "b" / "f"
    for namespace in (ours, idle):
        namespace.mkdir(parents=True)
    (idle / WRITER_LOCK).touch()
    quota = Quota(root=tmp_path, namespace=ours, model_bytes=9, root_bytes=9)
    assert quota.make_room(1) == 0
    lock = FileLock(idle / WRITER_LOCK)
    assert lock.take()
    lock.release()
    lock.release()
    assert not lock.held
    assert lock.take(), "given back and taken again"


def test_directory_that_another_process_writes_to_is_wanted(tmp_path: Path) -> None:
    """Of two models that nobody configured, the one in use gives room last."""
    ours, idle, used = (tmp_path / name / "f" for name in ("a", "b", "c"))
    for namespace in (ours, idle, used):
        namespace.mkdir(parents=True)
        (namespace / f"s{SUFFIX}").write_bytes(b"12345")
    lock = FileLock(used / WRITER_LOCK)
    assert lock.take()
    for namespace, moment in ((used, 1), (idle, 2), (ours, 3)):
        os.utime(namespace / f"s{SUFFIX}", (moment, moment))
    quota = Quota(root=tmp_path, namespace=ours, model_bytes=99, root_bytes=16)
    assert quota.make_room(5) == 1
    assert [n.parent.name for n in (ours, idle, used) if any(n.glob("s*"))] == ["a", "c"]
    lock.release()


def test_earlier_fingerprints_of_ones_own_model_go_first(tmp_path: Path) -> None:
    """What no prompt can hit any more gives room before what still serves, however new it is."""
    ours, earlier = tmp_path / "a" / "f", tmp_path / "a" / "before"
    for namespace, moment in ((ours, 1), (earlier, 9)):
        namespace.mkdir(parents=True)
        (namespace / f"s{SUFFIX}").write_bytes(b"12345")
        os.utime(namespace / f"s{SUFFIX}", (moment, moment))
    quota = Quota(root=tmp_path, namespace=ours, model_bytes=11, root_bytes=99)
    assert quota.make_room(5) == 1
    assert list(ours.glob("s*"))
    assert not list(earlier.glob("s*"))


def test_models_that_are_gone_give_room_first(tmp_path: Path) -> None:
    """Under the root's quota, files of unconfigured models and of old weights go before others."""
    kept = store(tmp_path, "kept")
    assert kept.put(snapshot(50))
    old = DiskStore(identity("m", "0" * 64), FINGERPRINT, settings(tmp_path))
    gone = store(tmp_path, "gone")
    for disk in (old, gone):
        assert disk.put(snapshot(50))
    for disk in (kept, old, gone):
        assert disk.writer.flush(10)
        disk.close(5)
    size = only_file(kept).stat().st_size
    os.utime(only_file(kept), (1, 1))  # the longest unused of all, and still wanted
    disk = store(tmp_path, root_bytes=2 * size + 100, configured=frozenset({"m", "kept"}))
    assert disk.put(snapshot(50))
    assert disk.writer.flush(10)
    assert not list(gone.folder.glob(f"*{SUFFIX}"))
    assert not list(old.folder.glob(f"*{SUFFIX}"))
    assert only_file(kept).exists()
    assert only_file(disk).exists()


def test_full_disk_switches_writing_off_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is a visible reason and counted drops; when there is room again it goes on."""
    disk = store(tmp_path)
    disk.writer._retry_s = 0.0

    def full(file: object, data: Payload) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(snapshot_file, "write", full)
        assert disk.put(snapshot(20))
        assert disk.writer.flush(10)
        assert disk.reason == "writing is off: No space left on device"
        assert disk.writer.dropped == {"disk_refused": 1}
        assert not list(disk.folder.glob(".part-*"))
        disk.writer._refused_until_s = float("inf")
        assert disk.put(snapshot(21))
        assert disk.writer.flush(10)
        assert disk.writer.dropped == {"disk_refused": 2}
    disk.writer._refused_until_s = 0.0
    assert disk.put(snapshot(20))
    assert disk.writer.flush(10)
    assert not disk.reason
    assert disk.writer.written == 1


class Gate:
    """A slow disk: writes wait until they are let through."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()
        self.stored: list[str] = []

    def __call__(self, data: Payload) -> str | None:
        self.entered.set()
        assert self.open.wait(20)
        self.stored.append(data.key)
        return None


def data(key: str, *replaces: str) -> Payload:
    return Payload(key=key, replaces=frozenset(replaces), metadata={}, tensors=())


def test_full_queue_drops_with_a_reason() -> None:
    """The queue is bounded; what does not fit is counted, and submit never waits."""
    gate = Gate()
    writer = Writer("w", gate, queue_limit=2)
    assert writer.submit(data("a"))
    assert gate.entered.wait(10)
    assert [writer.submit(data(key)) for key in "bcd"] == [True, True, False]
    assert writer.dropped == {"queue_full": 1}
    assert writer.queued == 3
    gate.open.set()
    assert writer.flush(10)
    assert gate.stored == ["a", "b", "c"]
    assert writer.written == 3


def test_writer_without_a_thread_drops_and_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system gives no more threads a snapshot is lost and counted, and no later one."""
    gate = Gate()
    gate.open.set()
    writer = Writer("w", gate)

    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        assert not writer.submit(data("a"))
    assert writer.submit(data("b"))
    assert writer.flush(10)
    assert gate.stored == ["b"]
    assert writer.dropped == {"error": 1}
    assert writer.close(10)


def test_waiting_prefixes_are_not_written() -> None:
    """A newer snapshot of the same conversation takes the place of one that still waits."""
    gate = Gate()
    writer = Writer("w", gate)
    assert writer.submit(data("a"))
    assert gate.entered.wait(10)
    assert writer.submit(data("b"))
    assert writer.submit(data("c", "b"))
    gate.open.set()
    assert writer.flush(10)
    assert gate.stored == ["a", "c"]
    assert writer.dropped == {"superseded": 1}


def test_shutdown_flushes_within_its_limit() -> None:
    """Closing writes what waits if there is time; else it says what was lost and what is stuck."""
    gate = Gate()
    writer = Writer("w", gate)
    writer.submit(data("a"))
    assert gate.entered.wait(10)
    writer.submit(data("b"))
    assert not writer.close(0.05)
    assert writer.dropped == {"unflushed": 1}
    assert not writer.submit(data("c"))
    gate.open.set()
    assert writer.close(10)
    assert gate.stored == ["a"]
    quick = Writer("q", gate)
    quick.submit(data("d"))
    assert quick.close(10)
    assert gate.stored[-1] == "d"


def test_errors_of_the_quota_do_not_end_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong in one write is a reason in the status; the next write is tried."""
    disk = store(tmp_path)

    def broken(self: Quota, size_bytes: int) -> int:
        raise RuntimeError("a mistake")

    with monkeypatch.context() as patch:
        patch.setattr(Quota, "make_room", broken)
        assert disk.put(snapshot(20))
        assert disk.writer.flush(10)
        assert "a mistake" in disk.reason
    assert disk.put(snapshot(20))
    assert disk.writer.flush(10)
    assert not disk.reason
    assert disk.clear() == 1
    assert len(disk) == 0
