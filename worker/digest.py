"""Weights digests: which weights a model really has, whatever its path is called."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

Report = Callable[[str, int, int, str], None]
"""``(stage, done, total, unit)``: told of anything that may take over a second."""

BLOCK_BYTES = 16 * 2**20


def weight_files(folder: Path) -> list[Path]:
    """The folder's weight files, in a fixed order."""
    return sorted(folder.glob("*.safetensors"))


def weights_digest(folders: Iterable[Path], report: Report) -> str:
    """SHA-256 over the weight files of ``folders`` (target, then draft), 64 hex digits.

    Raises:
        OSError: a file cannot be read.
    """
    files = [file for folder in folders for file in weight_files(folder)]
    total = sum(file.stat().st_size for file in files)
    digest, done = hashlib.sha256(), 0
    for file in files:
        digest.update(f"{file.name}:{file.stat().st_size};".encode())
        with file.open("rb") as stream:
            while block := stream.read(BLOCK_BYTES):
                digest.update(block)
                done += len(block)
                report("digest", done, total, "bytes")
    return digest.hexdigest()
