"""Versions that do not work together, with the reason and the way out. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ...protocol.finding import Finding, Level

Versions = Mapping[str, str]
"""Distributions by name; also ``python`` and ``libzmq``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where we are: ``platform.system()`` and ``platform.machine()``, and what is installed."""

    system: str
    machine: str
    versions: Versions

    def below(self, name: str, version: str) -> bool:
        """Whether something is installed in an older version."""
        found = self.versions.get(name)
        return found is not None and numbers(found) < numbers(version)

    def backends(self) -> list[str]:
        """The distributions that hold mlx's library on Linux."""
        return [name for name in self.versions if name.startswith(("mlx-cpu", "mlx-cuda"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBad:
    """A combination that was seen to fail."""

    applies: Callable[[Site], bool]
    reason: str
    advice: str
    level: Level = "problem"


TABLE = (
    KnownBad(
        applies=lambda site: (
            site.versions.get("transformers") == "5.13.0" and site.below("mlx-lm", "0.32")
        ),
        reason="transformers 5.13.0 refuses what mlx-lm before 0.32 registers: importing mlx_lm "
        "fails with \"'str' object has no attribute '__module__'\"",
        advice="pip install -U mlx-lm transformers",
    ),
    KnownBad(
        applies=lambda site: site.below("mlx", "0.32") or site.below("mlx-lm", "0.32"),
        reason="the engine is built on mlx and mlx-lm from 0.32 on",
        advice="pip install -U mlx mlx-lm",
    ),
    KnownBad(
        applies=lambda site: (
            site.system == "Linux" and "mlx" in site.versions and not site.backends()
        ),
        reason="mlx on Linux comes without its library (libmlx.so): importing it fails",
        advice="pip install 'mlx[cpu]', or 'mlx[cuda]' for an NVIDIA GPU",
    ),
    KnownBad(
        applies=lambda site: len(site.backends()) > 1,
        reason="two packages bring mlx's library, at the same place: which one runs depends on "
        "which was installed last",
        advice="pip uninstall both, then install the one that is wanted",
    ),
    KnownBad(
        applies=lambda site: any(
            site.versions[name] != site.versions.get("mlx")
            for name in (*site.backends(), *({"mlx-metal"} & set(site.versions)))
        ),
        reason="mlx and its library are of different versions: they share no stable interface",
        advice="pip install -U mlx, which pulls the library along",
    ),
    KnownBad(
        applies=lambda site: site.system == "Darwin" and site.machine == "x86_64",
        reason="this Python is translated (Rosetta) or the Mac has an Intel CPU: mlx has neither "
        "Metal nor a build there",
        advice="on Apple silicon, install Python for arm64 and make .venv anew",
    ),
    KnownBad(
        applies=lambda site: site.below("libzmq", "4.3.3"),
        reason="libzmq before 4.3.3 can be stopped by anyone who can connect, keys or not "
        "(CVE-2020-15166)",
        advice="pip install -U pyzmq",
    ),
)


def known_bad(site: Site) -> Iterator[Finding]:
    """One finding for each combination that is installed here."""
    for entry in TABLE:
        if entry.applies(site):
            yield Finding(
                name="known bad", says=entry.reason, level=entry.level, advice=entry.advice
            )


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers, as far as it has them."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
