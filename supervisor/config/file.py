"""Reading a configuration file: text to a checked Config, or sentences that say why not."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from ..errors import ConfigError
from .configuration import Config, anchored
from .problems import Problem, problems_between, problems_of
from .toml_lines import line_of

PROBLEMS_LIMIT = 20
"""Reported at once; whoever has more is better served with the first ones."""

SIZE_LIMIT_BYTES = 2**20
"""A device, or a model's weights, are not read to their end."""


def load(path: Path) -> Config:
    """Read and check a configuration file. Raises ConfigError."""
    return parse(read(path), source=str(path), base_dir=path.resolve().parent)


def read(path: Path) -> str:
    """A file's text. Raises ConfigError with one sentence."""
    try:
        with path.open("rb") as file:
            content = file.read(SIZE_LIMIT_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(content) > SIZE_LIMIT_BYTES:
        raise ConfigError(f"{path} is no configuration: it is larger than {SIZE_LIMIT_BYTES} bytes")
    try:
        return content.decode("utf-8-sig")  # some editors begin a UTF-8 file with a mark
    except UnicodeDecodeError as error:
        wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
        found = "UTF-16" if wide else f"not UTF-8 at byte {error.start}"
        raise ConfigError(f"{path} is {found}: save it as UTF-8 text") from error


def parse(text: str, *, source: str, base_dir: Path) -> Config:
    """Check configuration text. Relative paths in it count from ``base_dir``.

    Raises ConfigError: one line for each problem, with ``source``, line, section and key.
    """
    try:
        raw = tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, or a number beyond what Python reads
        raise ConfigError(f"{source} is not valid TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{source} is not valid TOML: it nests too deep") from error
    problems = list(problems_of(raw, Config))
    if problems:
        raise ConfigError(*lines(problems, text, source))
    try:
        config = msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:  # of the whole, not of one key
        raise ConfigError(f"{source}: {error}") from error
    problems = list(problems_between(config))
    if problems:
        raise ConfigError(*lines(problems, text, source))
    try:
        return anchored(config, base_dir)
    except RuntimeError as error:  # of expanduser
        raise ConfigError(f"{source}: a path with ~ cannot be used: {error}") from error


def lines(problems: list[Problem], text: str, source: str) -> list[str]:
    """Each problem on a line of its own, the way compilers tell of theirs."""
    found = [(line_of(text, problem.path), problem) for problem in problems[:PROBLEMS_LIMIT]]
    shown: list[str] = []
    for number, problem in sorted(found, key=lambda pair: pair[0] or 0):
        where = source if number is None else f"{source} line {number}"
        shown.append(f"{where}: {problem.sentence}")
    if len(problems) > PROBLEMS_LIMIT:
        shown.append(f"{source}: and {len(problems) - PROBLEMS_LIMIT} more")
    return shown
