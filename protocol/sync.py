"""The blocking client: :class:`AsyncClient` on a background loop, for any number of threads."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack, final

from .ask import GenerateOptions
from .background import BackgroundLoop
from .client import SILENCE_S, TIMEOUT_S, AsyncClient
from .generation import Completion, Generation as AsyncGeneration
from .messages import (
    CacheBody,
    ChunkBody,
    ConfigBody,
    DoneBody,
    EventBody,
    MetricsBody,
    ReloadBody,
    SnapshotBody,
)
from .question import OnEvent
from .reading import Reading
from .told import LogText
from .watch import Watching as AsyncWatching

T = TypeVar("T")


@final
class Client:
    """A connection to the daemon of ``runtime_dir``; parameters as for :class:`AsyncClient`.

    Usable from several threads. It connects when first used or entered with ``with``; leaving,
    or :meth:`close`, cancels what still runs. Callbacks run on the client's own thread.
    """

    def __init__(
        self,
        runtime_dir: Path | None = None,
        *,
        connect: str | None = None,
        key: Path | None = None,
        timeout_s: float = TIMEOUT_S,
        wait_s: float | None = None,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._make = partial(
            AsyncClient,
            runtime_dir,
            connect=connect,
            key=key,
            timeout_s=timeout_s,
            wait_s=wait_s,
            silence_s=silence_s,
        )
        _ = self._make()  # which looks at all of these
        self._lock = threading.Lock()
        self._opened: tuple[AsyncClient, BackgroundLoop] | None = None
        self._finalizer: weakref.finalize[..., Client] | None = None

    def __enter__(self) -> Self:
        _ = self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel in the daemon what still runs, and disconnect. Idempotent."""
        with self._lock:
            finalizer, self._finalizer = self._finalizer, None
            self._opened = None
        if finalizer is not None:
            finalizer()

    def generate(
        self,
        model: str,
        prompt: str | None = None,
        *,
        deadline_s: float | None = None,
        on_event: OnEvent | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Generation:
        """Start a generation at once; see :meth:`AsyncClient.generate`."""
        client, background = self._open()

        async def start() -> AsyncGeneration:
            return client.generate(
                model, prompt, deadline_s=deadline_s, on_event=on_event, **options
            )

        return Generation(self, background.run(start), background)

    def status(self) -> SnapshotBody:
        """Return the daemon's whole state; loads nothing and disturbs nothing."""
        return self._run(AsyncClient.status)

    def spawn(
        self, model: str, on_event: OnEvent | None = None, *, group: str | None = None
    ) -> None:
        """Load ``model`` and return when it is ready; ``on_event`` gets the progress.

        ``group`` moves it into that group's worker first; its own name means a worker of its own.
        """
        self._run(lambda client: client.spawn(model, on_event, group=group))

    def retire(self, model: str, *, now: bool = False) -> None:
        """Unload ``model`` and return when it is gone; ``now`` fails its running requests."""
        self._run(lambda client: client.retire(model, now=now))

    def pin(self, model: str, *, pinned: bool = True) -> None:
        """Keep ``model`` from being evicted or unloaded for being idle, or no longer."""
        self._run(lambda client: client.pin(model, pinned=pinned))

    def cache(self, model: str) -> CacheBody:
        """Return the state of a loaded model's prefix cache."""
        return self._run(lambda client: client.cache(model))

    def clear_cache(self, model: str) -> CacheBody:
        """Empty a loaded model's prefix cache, disk included; return its state after that."""
        return self._run(lambda client: client.clear_cache(model))

    def metrics(self) -> MetricsBody:
        """Return all metrics of the daemon; loads nothing and disturbs nothing."""
        return self._run(AsyncClient.metrics)

    def events(self, *, last: int | None = None, follow: bool = False) -> Watching[EventBody]:
        """Iterate over the daemon's events; see :meth:`AsyncClient.events`."""
        client, background = self._open()
        return Watching(self, client.events(last=last, follow=follow), background)

    def logs(self, model: str, *, lines: int = 100, follow: bool = False) -> Watching[LogText]:
        """Iterate over the log of ``model``'s worker; see :meth:`AsyncClient.logs`."""
        client, background = self._open()
        return Watching(self, client.logs(model, lines=lines, follow=follow), background)

    def reload(self, *, dry_run: bool = False, config: ConfigBody | None = None) -> ReloadBody:
        """Have the daemon read its configuration again; return what (``dry_run``: would) change."""
        return self._run(lambda client: client.reload(dry_run=dry_run, config=config))

    def shutdown(self, *, now: bool = False, on_event: OnEvent | None = None) -> None:
        """Stop the daemon; return when it has said so or has closed the connection."""
        self._run(lambda client: client.shutdown(now=now, on_event=on_event))

    def _run(self, ask: Callable[[AsyncClient], Coroutine[Any, Any, T]]) -> T:
        client, background = self._open()
        return background.run(lambda: ask(client))

    def _open(self) -> tuple[AsyncClient, BackgroundLoop]:
        with self._lock:
            if self._opened is None:
                background = BackgroundLoop("dflashd-client")
                client = self._make()  # another one may still be closing on a loop of its own
                try:
                    background.run(client.open)
                except BaseException:
                    background.end(client.close)
                    raise
                self._opened = (client, background)
                # Also runs when the client is dropped and when the interpreter exits.
                self._finalizer = weakref.finalize(self, _close, client, background)
            return self._opened


def _close(client: AsyncClient, background: BackgroundLoop) -> None:
    background.end(client.close)


@final
class Generation:
    """Iterate over its chunks, or wait for the whole; see the asynchronous Generation.

    Ctrl-C while iterating or waiting cancels it in the worker.
    """

    def __init__(
        self, client: Client, generation: AsyncGeneration, background: BackgroundLoop
    ) -> None:
        self._client = client  # dropping the client would cancel us
        self._generation = generation
        self._background = background

    @property
    def id(self) -> bytes:
        """The request's 128-bit id."""
        return self._generation.id

    @property
    def stats(self) -> DoneBody | None:
        """What the daemon says about it, once it has succeeded."""
        return self._generation.stats

    @property
    def ended(self) -> bool:
        """Whether its end has arrived; chunks may still be unread."""
        return self._generation.ended

    def __iter__(self) -> Reading[ChunkBody]:
        generation, background = self._generation, self._background
        return Reading(self, lambda: background.run(generation.next), generation.abandon)

    def wait(self) -> Completion:
        """Read to the end and return the whole, what was iterated over before included."""
        return self._background.run(self._generation.wait)

    def cancel(self) -> None:
        """Stop it in the worker and wait, for a bounded time, until that is confirmed."""
        self._background.run(self._generation.cancel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._generation.abandon()


@final
class Watching(Reading[T]):
    """One iteration over what the daemon tells; leaving it early ends it in the daemon."""

    def __init__(
        self, owner: Client, watching: AsyncWatching[T], background: BackgroundLoop
    ) -> None:
        super().__init__(owner, lambda: background.run(watching.next), watching.abandon)

    def close(self) -> None:
        """End it; idempotent, and callable from any thread."""
        self._abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
