"""Backends: what turns a model's configuration into something that generates.

``dflash`` is our own. Others are installed beside us and found through the Python entry point group
``dflashd.backends``: the entry point's name is the backend's name, which a model's configuration
gives as ``backend``, and what it refers to is called without arguments, once for each engine.
docs/architecture.md says what a backend promises.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, TypeVar, final, runtime_checkable

from ...protocol.errors import DflashError, ErrorCode
from ...protocol.messages import LoadBody
from ..errand import Errand, Progress
from ..hooks.model_guard import ModelGuard
from ..log import line, log
from .border import HeldModel

GROUP = "dflashd.backends"

P = TypeVar("P")
"""What a backend prepares for its loads."""


@runtime_checkable
class Backend(Protocol[P]):
    """Loads models of its kind. All calls but ``prepare`` come on the engine's thread."""

    def prepare(self, name: str, body: LoadBody, errand: Errand) -> P:
        """What of a load needs neither that thread nor memory, such as fetching and reading files;
        what it returns goes to :meth:`load`.

        Called on a thread of its own, beside everything else, for several models at once; may take
        hours. ``errand(stage, done, total, unit)`` tells how far it is, and raises when nobody
        wants the load any more.
        """
        ...

    def load(
        self, name: str, body: LoadBody, progress: Progress, guard: ModelGuard, prepared: P
    ) -> HeldModel:
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
    """The backends of one engine: its own, and installed ones, imported when first asked for; from
    any thread.
    """

    def __init__(self, own: dict[str, Backend[Any]]) -> None:
        self._made = dict(own)
        self._own = frozenset(own)
        self._making = threading.Lock()

    def get(self, name: str) -> Backend[Any]:
        """The backend of that name.

        Raises:
            DflashError: unsupported if none, or more than one, is installed; load_failed if it
                cannot be imported.
        """
        with self._making:
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


def _made(entry: EntryPoint) -> Backend[Any]:
    try:
        backend = entry.load()()
    except Exception as error:  # noqa: BLE001 - other people's code
        log.exception(line("backend_failed", backend=entry.name))
        raise DflashError(
            ErrorCode.load_failed,
            f"backend {entry.name} of {_origin(entry)} cannot be used: "
            f"{type(error).__name__} {' '.join(str(error).split())[:500]}",
        ) from None
    if not isinstance(backend, Backend):
        raise DflashError(
            ErrorCode.load_failed,
            f"backend {entry.name} of {_origin(entry)} lacks the method prepare(name, body, "
            "errand) or load(name, body, progress, guard, prepared)",
        )
    return backend


def _origin(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
