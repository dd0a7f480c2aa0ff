"""What is installed, and what of it does not work together."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata

from ...protocol.finding import Finding
from ...protocol.version import VERSION
from ..config.http_section import packages_missing
from .known_bad import Site, known_bad

PACKAGES = ("mlx", "mlx-lm", "transformers", "pyzmq", "scipy-openblas32")
LIBRARIES = ("mlx-cpu", "mlx-cuda", "mlx-cuda-12", "mlx-cuda-13", "mlx-metal")


def look() -> Iterator[Finding]:
    """The versions, known-bad combinations, what the gateway needs, and what libzmq can do."""
    import zmq

    found = {"python": platform.python_version(), "dflashd": VERSION, **installed(PACKAGES)}
    found["libzmq"] = zmq.zmq_version()
    says = ", ".join(f"{name} {version}" for name, version in found.items())
    yield Finding(name="versions", says=says, figures=dict(found))
    everything = found | installed(LIBRARIES)
    site = Site(system=platform.system(), machine=platform.machine(), versions=everything)
    yield from known_bad(site)
    missing = packages_missing()
    yield Finding(
        name="gateway",
        says=f"HTTP needs {', '.join(missing)}" if missing else "what HTTP needs is installed",
        level="note" if missing else "ok",
        advice="pip install 'dflashd[http]', if [http] is to be configured" if missing else "",
    )
    if not zmq.has("curve"):
        yield Finding(
            name="curve",
            says="this libzmq was built without encryption: keys and tcp cannot be used",
            level="note",
            advice="pip install --force-reinstall pyzmq, whose wheels have it",
        )


def installed(names: tuple[str, ...]) -> dict[str, str]:
    """The versions of those that are there."""
    found: dict[str, str] = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
