"""One connection to the daemon and everything that waits for an answer on it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import final

import zmq

from . import absence
from .codec import decode, encode
from .errors import DflashError, ErrorCode, Malformed, Stranger
from .key_file import KeyFile
from .link import Link
from .messages import WINDOW_CHUNKS, Cancel, Failed, Header, Hello, ToClient, Welcome
from .pending import Pending

MISSED_LIMIT = 4
"""Silent intervals, each with a question asked in it, after which the daemon counts as gone."""


@final
class Channel:
    """Requests out, answers to the request they belong to. Nothing waits without an end:

    a lost connection, a silent daemon and a request that is not answered each fail what waits.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        url: str,
        *,
        timeout_s: float,
        silence_s: float,
        key: KeyFile | None = None,
    ) -> None:
        self.welcome: Welcome | None = None
        self.strays = 0
        """Messages that were dropped: for requests that had ended here, or of no request."""
        self._url = url
        self._timeout_s = timeout_s
        self._interval_s = silence_s / MISSED_LIMIT
        self._pending: dict[bytes, Pending] = {}
        self._loop = asyncio.get_running_loop()
        self._watch: asyncio.TimerHandle | None = None
        self._heard = False
        self._missed = 0
        self._refusal: DflashError | None = None
        self._greeted = asyncio.Event()
        self._has_key = key is not None
        self._link = Link(
            context, url, key=key, on_message=self._receive, on_up=self._greet, on_down=self._lose
        )

    async def open(self, wait_s: float) -> None:
        """Connect and be welcomed within ``timeout_s``; wait ``wait_s`` for a daemon to appear."""
        start = self._loop.time()
        try:
            async with asyncio.timeout(self._timeout_s):
                while not self._link.up and self._refusal is None:
                    if self._link.unauthorised:
                        raise absence.unauthorised(self._url)
                    if self._link.refused and self._loop.time() - start >= wait_s:
                        raise self._nobody()
                    await self._link.change()
                await self._greeted.wait()
        except TimeoutError:
            raise self._nobody() from None
        if self._refusal is not None:
            raise self._refusal

    @property
    def window_chunks(self) -> int:
        """The credit a request may start with, as the daemon said."""
        return self.welcome.window if self.welcome is not None else WINDOW_CHUNKS

    def ask(self, pending: Pending, frames: list[bytes], *, must_answer: bool = True) -> None:
        """Send a request. With ``must_answer`` a first answer is due within ``timeout_s``."""
        self._pending[pending.id] = pending
        pending.when_ended(self._forget)
        expect = partial(self._expect, pending, frames, must_answer=must_answer)
        pending.expect_answer(self._loop.call_later(self._timeout_s, expect))
        if self._watch is None:
            self._missed = 0
            self._heard = True
            self._watch = self._loop.call_later(self._interval_s, self._look)
        self._link.send(frames)

    def tell(self, header: Header) -> None:
        """Send what needs no answer; dropped when the daemon is not there to mind."""
        if self._link.up:
            self._link.send(encode(header))

    def end_by(self, pending: Pending, seconds: float) -> None:
        """Fail ``pending`` with ``deadline`` if it has not ended in ``seconds``."""
        error = DflashError(ErrorCode.deadline, "the deadline has passed and no answer came")
        pending.expect_end(self._loop.call_later(seconds, self._fail_one, pending.id, error))

    def close(self) -> None:
        """Cancel everything that waits and close the connection. Idempotent."""
        self._fail_one(None, absence.closed())
        if self._watch is not None:
            self._watch.cancel()
        self._link.close()

    def _greet(self) -> None:
        self._link.send(encode(Hello(client="dflashd.protocol")))

    def _lose(self) -> None:
        self._fail_all(absence.lost(self._url))

    def _receive(self, frames: list[bytes]) -> None:
        self._heard = True
        try:
            message = decode(frames, ToClient)
        except Malformed as error:
            self._fail_one(error.request_id, error)
            return
        except Stranger:
            self._fail_one(None, absence.stranger(self._url))
            return
        header = message.header
        if isinstance(header, Welcome):
            self.welcome = header
            self._greeted.set()
            return
        request_id: bytes | None = getattr(header, "id", None)
        if request_id is None:
            if isinstance(header, Failed):
                self._fail_one(None, header.error())
            return
        pending = self._pending.get(request_id)
        if pending is None:
            self.strays += 1
            return
        try:
            pending.receive(message)
        except Exception as error:  # noqa: BLE001 - the user's on_event: only its request ends
            self._fail_one(request_id, error)

    def _fail_one(self, request_id: bytes | None, error: Exception) -> None:
        """Fail the request a bad message belongs to; all of them if it cannot be told."""
        if request_id is None:
            if isinstance(error, DflashError):
                self._refusal = error
                self._greeted.set()
            self._fail_all(error)
        elif request_id in self._pending:
            self.tell(Cancel(id=request_id))
            self._pending[request_id].fail(error)
        else:
            self.strays += 1

    def _fail_all(self, error: Exception) -> None:
        for request_id in list(self._pending):
            self._fail_one(request_id, error)

    def _forget(self, pending: Pending) -> None:
        self._pending.pop(pending.id, None)

    def _expect(self, pending: Pending, frames: list[bytes], *, must_answer: bool) -> None:
        """Fail ``pending``, which got no answer in time; unless it waits with good reason."""
        if self._link.up and not must_answer:
            return
        self._link.withdraw(frames)
        self._fail_one(pending.id, self._nobody())

    def _look(self) -> None:
        # Missed intervals, not a clock: a loop that was blocked, or a laptop that slept,
        # costs one interval at most.
        self._watch = None
        if not self._pending:
            return
        self._missed = 0 if self._heard or not self._link.up else self._missed + 1
        self._heard = False
        if self._missed > MISSED_LIMIT:
            self._fail_all(absence.mute(self._url))
            return
        if self._link.up:
            self._greet()
        self._watch = self._loop.call_later(self._interval_s, self._look)

    def _nobody(self) -> DflashError:
        """Why no answer came."""
        if self._link.up:
            return absence.mute(self._url)
        if self._link.unauthorised:
            return absence.unauthorised(self._url)
        if self._link.broken:
            return absence.broken(self._url, has_key=self._has_key)
        if self._link.reached:
            return absence.mute(self._url)
        return absence.nobody(self._url)
