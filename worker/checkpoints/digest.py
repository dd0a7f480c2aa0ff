"""Weights digests: which weights a model really has, whatever its path is called.

Reading 20 GB takes 20 s, so the digest of a file is remembered with all the file system tells of
it: path, size, inode, and both times to the nanosecond. New content changes ``ctime``, which no
program can set back. A file that changed within the last seconds is not remembered: its clock may
be too coarse to show the next change.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from ..errand import Progress
from ..memo import recall, remember
from .weight_files import weight_files

BLOCK_BYTES = 16 * 2**20
TOKENIZER_FILES = (
    "*.json",
    "*.jsonl",
    "*.txt",
    "*.jinja",
    "*.tiktoken",
    "*.model",
    "additional_chat_templates/*",
)
"""All that a tokenizer may be made of; no Python files, because we never run a model's own code."""

MEMO = "weights-digests.json"
SETTLED_S = 10.0
"""So long ago a file must have changed for its digest to be remembered."""

MOST_REMEMBERED = 4096


def folder_marks(folder: Path) -> frozenset[str]:
    """What the file system tells of the folder's weights and settings: equal while none is touched.

    Raises:
        OSError: a file cannot be looked at.
    """
    settings = (file for file in folder.glob("*.json") if file.is_file())
    return frozenset(_stamped(file) for file in (*weight_files(folder), *settings))


def folder_digest(folder: Path, report: Progress, memo: Path | None = None) -> str:
    """SHA-256 over names and content of the folder's weight files, 64 hex digits.

    ``memo`` is the file of remembered digests; without one every byte is read.

    Raises:
        OSError: a weight file cannot be read.
    """
    files = weight_files(folder)
    known = _known(memo)
    total = sum(file.stat().st_size for file in files)
    digest, done, fresh = hashlib.sha256(), 0, dict[str, str]()
    for file in files:
        mark = _mark(file)
        content = known.get(mark) if mark is not None else None
        if content is None:
            content = _file_digest(
                file, lambda read, at=done: report("digest", at + read, total, "bytes")
            )
            if mark is not None and mark == _mark(file):
                fresh[mark] = content
        done += file.stat().st_size
        digest.update(f"{file.name}:{content};".encode())
    if fresh and memo is not None:
        # Looked at again: other loads remembered theirs while this one read.
        every = list({**_known(memo), **fresh}.items())
        remember(memo, dict(every[-MOST_REMEMBERED:]))  # the newest are last
    return digest.hexdigest()


def tokenizer_digest(folder: Path) -> str:
    """SHA-256 over names and content of all files a tokenizer may be made of."""
    digest = hashlib.sha256()
    for file in sorted(file for pattern in TOKENIZER_FILES for file in folder.glob(pattern)):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{file.relative_to(folder)}:{content};".encode())
    return digest.hexdigest()


def combined_digest(target: str, draft: str | None) -> str:
    """One digest for a pair; the target's own where there is no draft."""
    return target if draft is None else hashlib.sha256(f"{target}+{draft}".encode()).hexdigest()


def _file_digest(file: Path, progress: Callable[[int], None]) -> str:
    digest, done = hashlib.sha256(), 0
    with file.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            digest.update(block)
            done += len(block)
            progress(done)
    return digest.hexdigest()


def _mark(file: Path) -> str | None:
    """All the file system tells of this content; None while it may still be changing."""
    facts = file.stat()
    if time.time() - max(facts.st_mtime, facts.st_ctime) < SETTLED_S:
        return None
    return _stamped(file)


def _stamped(file: Path) -> str:
    facts = file.stat()
    stamps = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
    return f"{file.resolve()}|{'|'.join(map(str, stamps))}"


def _known(memo: Path | None) -> dict[str, str]:
    """The digests remembered."""
    pairs = recall(memo).items() if memo is not None else ()
    return {mark: value for mark, value in pairs if isinstance(value, str) and len(value) == 64}
