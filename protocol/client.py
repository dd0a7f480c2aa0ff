"""The asyncio client of a dflashd daemon."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Self, TypeVar, Unpack, final

import zmq

from . import absence, question
from .arguments import Patience, Seconds, checked
from .ask import GenerateOptions, deadline_ms, generate_body
from .channel import Channel
from .codec import encode_question
from .errors import DflashError, ErrorCode
from .generation import Generation
from .key_file import read_key_file
from .link import LINGER_MS
from .messages import (
    CacheBody,
    Cancel,
    ConfigBody,
    EventBody,
    Generate,
    MetricsBody,
    ReloadBody,
    SnapshotBody,
)
from .paths import endpoints_of
from .pending import Call
from .question import Feed, OnEvent, Question
from .stream import Stream
from .told import LogText
from .watch import Watch, Watching

T = TypeVar("T")

TIMEOUT_S = 10.0
SILENCE_S = 20.0
DEADLINE_GRACE_S = 2.0
"""How long after a deadline the daemon's own answer is waited for."""


@final
class AsyncClient:
    """A connection to the daemon of ``runtime_dir``; use it as an async context manager.

    Or to one on another machine: ``connect`` is its address (``tcp://HOST:PORT``), ``key`` the file
    that `dflashctl keys new` made for this client there.

    ``timeout_s`` bounds connecting and every first answer; ``wait_s`` is how long a daemon that
    is not there may take to appear (default: ``timeout_s``); after ``silence_s`` without a sign
    of life it counts as gone. What goes wrong raises DflashError, misuse RuntimeError.
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
        self._endpoints = endpoints_of(runtime_dir, connect)
        if key is not None and connect is None:
            sentence = "a key is for a daemon at an address, and none is named (connect)"
            raise DflashError(ErrorCode.bad_request, sentence)
        self._key = read_key_file(key) if key is not None else None
        self._timeout_s: float = checked("timeout_s", timeout_s, Patience)
        self._wait_s: float = timeout_s if wait_s is None else checked("wait_s", wait_s, Seconds)
        self._silence_s: float = checked("silence_s", silence_s, Patience)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._channels: set[Channel] = set()
        """Those that are still being opened, too."""
        self._requests: Channel | None = None
        self._control: Channel | None = None
        self._opening: asyncio.Lock | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect. Raises DflashError(not_found) that says how to start a daemon."""
        if self._context is not None:
            raise RuntimeError("this client is already open")
        self._context = zmq.Context()
        self._opening = asyncio.Lock()
        try:
            self._requests = await self._connect(self._context, self._endpoints.requests)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Cancel in the daemon what still runs, and disconnect. Idempotent."""
        channels, self._channels = self._channels, set[Channel]()
        self._requests = self._control = None
        context, self._context = self._context, None
        for channel in channels:
            channel.close()
        if context is not None:
            await _let_go(context)

    def generate(
        self,
        model: str,
        prompt: str | None = None,
        *,
        deadline_s: float | None = None,
        on_event: OnEvent | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Generation:
        """Start a generation at once; see :class:`GenerateOptions` for the other arguments.

        ``on_event`` gets Accepted (position, what it waits for) and load progress. Raises
        DflashError(bad_request) that names what is wrong.
        """
        channel = self._requests
        if channel is None:
            raise RuntimeError("this client is not open: use 'async with'")
        stream = Stream(channel.tell, on_event, channel.window_chunks)
        header = Generate(
            id=stream.id,
            model=model,
            credit=stream.window.window,
            deadline_ms=deadline_ms(deadline_s),
        )
        channel.ask(stream, encode_question(header, generate_body(prompt, **options)))
        if deadline_s is not None:
            channel.end_by(stream, deadline_s + DEADLINE_GRACE_S)
        return Generation(stream, self._timeout_s, asyncio.get_running_loop())

    async def status(self) -> SnapshotBody:
        """Return the daemon's whole state; loads nothing and disturbs nothing."""
        return await self._ask(question.status())

    async def spawn(
        self, model: str, on_event: OnEvent | None = None, *, group: str | None = None
    ) -> None:
        """Load ``model`` and return when it is ready; ``on_event`` gets the progress.

        ``group`` moves it into that group's worker first; its own name means a worker of its own.
        """
        await self._ask(question.spawn(model, group), on_event)

    async def retire(self, model: str, *, now: bool = False) -> None:
        """Unload ``model`` and return when it is gone; ``now`` fails its running requests."""
        await self._ask(question.retire(model, now=now))

    async def pin(self, model: str, *, pinned: bool = True) -> None:
        """Keep ``model`` from being evicted or unloaded for being idle, or no longer."""
        await self._ask(question.pin(model, pinned=pinned))

    async def cache(self, model: str) -> CacheBody:
        """Return the state of a loaded model's prefix cache."""
        return await self._ask(question.cache(model))

    async def clear_cache(self, model: str) -> CacheBody:
        """Empty a loaded model's prefix cache, disk included; return its state after that."""
        return await self._ask(question.clear_cache(model))

    async def reload(
        self, *, dry_run: bool = False, config: ConfigBody | None = None
    ) -> ReloadBody:
        """Have the daemon read its configuration again; return what changes.

        ``dry_run`` only asks what would change, and may ask that of another ``config``.
        """
        return await self._ask(question.reload(config, dry_run=dry_run))

    async def metrics(self) -> MetricsBody:
        """Return all metrics of the daemon; loads nothing and disturbs nothing."""
        return await self._ask(question.metrics())

    def events(self, *, last: int | None = None, follow: bool = False) -> Watching[EventBody]:
        """Iterate over the ``last`` events of the daemon (None: all it keeps); ``follow``: then
        over those to come. Who reads too slowly sees a gap in ``serial``.
        """
        return self._watch(question.events(last, follow=follow))

    def logs(self, model: str, *, lines: int = 100, follow: bool = False) -> Watching[LogText]:
        """Iterate over the last ``lines`` of the log of ``model``'s worker, in pieces that need not
        be lines; ``follow``: then over what is written from then on.
        """
        return self._watch(question.logs(model, lines, follow=follow))

    async def shutdown(self, *, now: bool = False, on_event: OnEvent | None = None) -> None:
        """Stop the daemon; return when it has said so or has closed the connection.

        ``on_event`` gets Accepted with what the daemon still waits for.
        """
        with contextlib.suppress(absence.ConnectionLost):
            await self._ask(question.shutdown(now=now), on_event)

    async def _ask(self, asked: Question[T], on_event: OnEvent | None = None) -> T:
        call = Call(asked, on_event)
        channel = await self._control_channel()
        channel.ask(call, asked.frames, must_answer=asked.at_once)
        try:
            return await call.result()
        finally:
            if not call.ended:  # we were cancelled
                channel.tell(Cancel(id=call.id))
                call.fail(DflashError(ErrorCode.cancelled, "the caller was cancelled"))

    def _watch(self, feed: Feed[T]) -> Watching[T]:
        async def start() -> Watch:
            channel = await self._control_channel()
            watch = Watch(feed.id, channel.tell)
            channel.ask(watch, feed.frames)
            return watch

        return Watching(start, feed.read)

    async def _control_channel(self) -> Channel:
        context = self._context
        if context is None or self._opening is None:
            raise RuntimeError("this client is not open: use 'async with'")
        async with self._opening:
            if self._context is not context:
                raise absence.closed()
            if self._control is None:
                self._control = await self._connect(context, self._endpoints.control)
            return self._control

    async def _connect(self, context: zmq.Context[zmq.Socket[bytes]], url: str) -> Channel:
        try:
            channel = Channel(
                context,
                url,
                timeout_s=self._timeout_s,
                silence_s=self._silence_s,
                key=self._key,
            )
        except zmq.ZMQError as error:
            raise absence.no_socket(error) from error
        self._channels.add(channel)
        try:
            await channel.open(self._wait_s)
        except BaseException:
            self._channels.discard(channel)
            channel.close()
            raise
        return channel


async def _let_go(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """Wait until the last messages have left, at most the linger time, and free the context."""
    try:
        destroyed = asyncio.to_thread(context.destroy, LINGER_MS)
        await asyncio.shield(destroyed)
    except RuntimeError:  # the interpreter is exiting and starts no more threads
        context.destroy(LINGER_MS)
