"""Backends: what turns a model's configuration into something that generates.

``dflash`` is our own. Others are installed beside us and found through the Python entry point group
``dflashd.backends``: the entry point's name is the backend's name, which a model's configuration
gives as ``backend``, and what it refers to is called without arguments, once for each engine.
docs/architecture.md says what a backend promises.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, final, runtime_checkable

from ...protocol.errors import DflashError, ErrorCode
from ...protocol.messages import LoadBody
from ..errand import Progress
from ..hooks.model_guard import ModelGuard
from .border import HeldModel

log = logging.getLogger(__name__)

GROUP = "dflashd.backends"


@runtime_checkable
class Backend(Protocol):
    """Loads models of its kind. All calls come on the engine's thread."""

    def load(self, name: str, body: LoadBody, progress: Progress, guard: ModelGuard) -> HeldModel:
        """Load a model whole, or raise and keep nothing of it.

        - What will be hooked or patched is claimed through ``guard`` before anything is changed.
          The leases are the model's: it checks them when a request begins, and releases them in
          ``close``. After a failure they are released for the backend.
        - ``progress`` is to be called at least every few seconds. What it raises passes through.
        - Errors are DflashError with a sentence for a person; others of Python's and mlx's own are
          turned into one.
        """
        ...


@final
class Backends:
    """The backends of one engine: its own, and installed ones, imported when first asked for."""

    def __init__(self, own: dict[str, Backend]) -> None:
        self._made = dict(own)
        self._own = frozenset(own)

    def get(self, name: str) -> Backend:
        """The backend of that name.

        Raises:
            DflashError: unsupported if none, or more than one, is installed; load_failed if it
                cannot be imported.
        """
        backend = self._made.get(name)
        if backend is None:
            backend = self._made[name] = _made(_entry_point(name, self._own))
        return backend


def _entry_point(name: str, own: Iterable[str]) -> EntryPoint:
    installed = entry_points(group=GROUP)
    found = [entry for entry in installed if entry.name == name]
    if len(found) == 1:
        return found[0]
    names = ", ".join(sorted({*own, *installed.names}))
    if not found:
        raise DflashError(
            ErrorCode.unsupported,
            f"there is no backend {name}; installed are: {names}. Others are Python packages with "
            f"an entry point in the group {GROUP}",
        )
    raise DflashError(
        ErrorCode.unsupported,
        f"several packages call a backend {name} ({', '.join(map(_origin, found))}); "
        "uninstall all but one",
    )


def _made(entry: EntryPoint) -> Backend:
    try:
        backend = entry.load()()
    except Exception as error:
        log.exception("backend_failed backend=%s", entry.name)
        raise DflashError(
            ErrorCode.load_failed,
            f"backend {entry.name} of {_origin(entry)} cannot be used: "
            f"{type(error).__name__} {' '.join(str(error).split())[:500]}",
        ) from None
    if not isinstance(backend, Backend):
        raise DflashError(
            ErrorCode.load_failed,
            f"backend {entry.name} of {_origin(entry)} has no method load(name, body, progress, "
            "guard)",
        )
    return backend


def _origin(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
