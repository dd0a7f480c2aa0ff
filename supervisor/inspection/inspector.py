"""Looks at models' files beside the loop: a disk may be slow, a stream must not be."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import final

from ...protocol.messages import LoadBody
from ..core.facts import ModelFacts
from .facts import inspect


@final
class Inspector:
    """Answers each question by ``on_facts(model, facts)`` in the loop, or never if a disk hangs."""

    def __init__(self, *, concurrency: int, pool_bytes: int) -> None:
        self._concurrency = concurrency
        self._pool_bytes = pool_bytes
        self.on_facts: Callable[[str, ModelFacts], None] = lambda _model, _facts: None

    def ask(self, model: str, body: LoadBody) -> None:
        """Begin to look; returns at once."""
        loop = asyncio.get_running_loop()
        # A thread each, which the interpreter's end does not wait for: a dead disk holds its own.
        threading.Thread(
            target=self._look, args=(loop, model, body), name=f"inspect {model}", daemon=True
        ).start()

    def _look(self, loop: asyncio.AbstractEventLoop, model: str, body: LoadBody) -> None:
        try:
            facts = inspect(body, concurrency=self._concurrency, pool_bytes=self._pool_bytes)
        except Exception as error:  # noqa: BLE001 (a thread's border: the model may be tried)
            facts = ModelFacts(unknown=f"its files could not be understood: {error}"[:500])
        try:
            loop.call_soon_threadsafe(self.on_facts, model, facts)
        except RuntimeError:  # the loop is closed: the daemon has stopped meanwhile
            return
