"""Weights digests: the content decides, and what is remembered is never trusted too far."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from dflashd.worker.checkpoints import digest
from dflashd.worker.checkpoints.digest import combined_digest, folder_digest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder with two weight files."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "a.safetensors").write_bytes(b"one" * 1000)
    (model / "b.safetensors").write_bytes(b"two" * 1000)
    return model


class Reads:
    """Counts the bytes that were read, as progress tells it."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, stage: str, done: int, total: int, unit: str) -> None:
        assert (stage, unit) == ("digest", "bytes")
        assert 0 < done <= total == 6000
        self.calls += 1


def test_content_and_names_decide(folder: Path) -> None:
    """One byte, or a name, changed is another digest; other files do not count."""
    first = folder_digest(folder, Reads())
    (folder / "notes.txt").write_text("x")
    assert folder_digest(folder, Reads()) == first
    (folder / "b.safetensors").write_bytes(b"twp" * 1000)
    second = folder_digest(folder, Reads())
    (folder / "b.safetensors").rename(folder / "c.safetensors")
    assert len({first, second, folder_digest(folder, Reads())}) == 3


def test_settled_files_are_read_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that has not changed for a while is remembered; a fresh one is read every time."""
    memo = tmp_path / "cache" / "memo.json"
    first = folder_digest(folder, Reads(), memo)
    again = Reads()
    assert folder_digest(folder, again, memo) == first
    assert again.calls == 2
    assert not memo.exists()
    monkeypatch.setattr(digest, "SETTLED_S", -1.0)
    assert folder_digest(folder, Reads(), memo) == first
    third = Reads()
    assert folder_digest(folder, third, memo) == first
    assert third.calls == 0


def test_new_content_is_never_taken_for_the_old(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same path, same size, times set back: the new weights get their own digest."""
    monkeypatch.setattr(digest, "SETTLED_S", -1.0)
    memo = tmp_path / "memo.json"
    first = folder_digest(folder, Reads(), memo)
    file = folder / "a.safetensors"
    facts = file.stat()
    with file.open("r+b") as stream:
        stream.write(b"eno")
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert file.stat().st_size == facts.st_size
    assert folder_digest(folder, Reads(), memo) != first


def test_loads_at_the_same_time_forget_nothing_of_each_other(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another load remembered while this one read is still remembered afterwards."""
    monkeypatch.setattr(digest, "SETTLED_S", -1.0)
    memo, other = tmp_path / "memo.json", tmp_path / "other"
    other.mkdir()
    (other / "a.safetensors").write_bytes(b"three" * 1200)

    def meanwhile(*_: object) -> None:
        folder_digest(other, lambda *_: None, memo)

    folder_digest(folder, meanwhile, memo)
    again = Reads()
    folder_digest(folder, again, memo)
    folder_digest(other, again, memo)
    assert again.calls == 0


def test_full_disk_costs_time_and_nothing_else(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be remembered is read again next time; nothing half written is left."""
    monkeypatch.setattr(digest, "SETTLED_S", -1.0)
    memo = tmp_path / "cache" / "memo.json"

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(json, "dump", full)
    assert folder_digest(folder, Reads(), memo) == folder_digest(folder, Reads())
    assert list(memo.parent.iterdir()) == []


@pytest.mark.parametrize("content", ["", "[]", '{"x": 3}', "{", "\x00"])
def test_damaged_memory_is_ignored(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    """A memo that cannot be read only costs time."""
    monkeypatch.setattr(digest, "SETTLED_S", -1.0)
    memo = tmp_path / "memo.json"
    memo.write_text(content)
    assert folder_digest(folder, Reads(), memo) == folder_digest(folder, Reads())


def test_pair_has_a_digest_of_its_own() -> None:
    """A target alone keeps its digest; with a draft the pair's names both."""
    assert combined_digest("a", None) == "a"
    assert len({combined_digest("a", "b"), combined_digest("b", "a"), "a"}) == 3
