"""Loads in the engine loop: those being prepared, those that wait for the engine, the one it has.

Files are fetched and read beside the engine, for all loads at the same time. What needs the
engine's thread is done one load after the other, and loads of one name in the order they were
asked for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import final

from ...protocol.errors import DflashError
from ...protocol.messages import LoadBody
from ..engine.border import Engine
from ..engine.failure import load_failure
from ..errand import Errand
from ..log import line, log

Aside = Callable[[str, Callable[[], None], Callable[[], None]], None]
"""Does the first on a thread of its own, named after a model, and then the second on the loop's;
returns at once."""

Tell = Callable[[str, str, int, int, str], None]
"""``(model, stage, done, total, unit)``, from any thread."""


@dataclass(slots=True, kw_only=True, eq=False)
class Loading:
    """A load that was asked for. ``resumed_at_s``: when it last got the engine thread."""

    name: str
    body: LoadBody
    errand: Errand
    """Its preparation; called off, the rest of the load ends at its next progress too."""
    replace: bool = False
    """Whether a model of this name gives way to it."""
    ready: bool = False
    """Prepared, with or without success."""
    prepared: object = None
    failure: DflashError | None = None
    """Why it could not be prepared."""
    resumed_at_s: float = 0.0
    thread: int = field(default_factory=threading.get_ident)
    unload_asked: bool = False
    """An Unload came meanwhile and is answered after the load."""


@final
class Loads:
    """Those that the engine has not begun. ``aside`` None: the engine prepares them itself."""

    def __init__(self, engine: Engine, tell: Tell, aside: Aside | None) -> None:
        self._engine = engine
        self._tell = tell
        self._aside = aside
        self._waiting: deque[Loading] = deque()

    def ask(self, name: str, body: LoadBody, *, replace: bool) -> None:
        """Begin to prepare a load."""
        errand = Errand(partial(self._tell, name))
        loading = Loading(name=name, body=body, errand=errand, replace=replace)
        self._waiting.append(loading)
        if self._aside is None:
            loading.ready = True
            return
        try:
            self._aside(name, lambda: self._prepare(loading), lambda: _make_ready(loading))
        except RuntimeError as error:  # no more threads
            loading.failure = load_failure(error, self._engine)
            loading.ready = True

    def next(self) -> Loading | None:
        """Take the first that is ready and not behind another of its name."""
        passed: set[str] = set()
        for loading in self._waiting:
            if loading.ready and loading.name not in passed:
                self._waiting.remove(loading)
                if self._aside is None:
                    self._prepare(loading)
                return loading
            passed.add(loading.name)
        return None

    def withdraw(self, meant: Callable[[Loading], bool], why: str) -> list[Loading]:
        """Take out and call off those that are ``meant``."""
        withdrawn = [loading for loading in self._waiting if meant(loading)]
        for loading in withdrawn:
            self._waiting.remove(loading)
            loading.errand.call_off(why)
        return withdrawn

    def _prepare(self, loading: Loading) -> None:
        """On a thread of its own, where there is one for that."""
        try:
            loading.prepared = self._engine.prepare(loading.name, loading.body, loading.errand)
        except Exception as error:  # noqa: BLE001 - this thread's border
            loading.failure = load_failure(error, self._engine)
            if not isinstance(error, DflashError):
                log.exception(line("preparation_failed", model=loading.name))


def _make_ready(loading: Loading) -> None:
    loading.ready = True
