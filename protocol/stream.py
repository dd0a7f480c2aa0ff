"""The client's side of one generation: order, credit and what has not been read yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import final

from .codec import Message, decode_body
from .credit import ReceiveWindow
from .errors import DflashError, ErrorCode
from .messages import WINDOW_CHUNKS, AddCredit, Cancel, Chunk, ChunkBody, Done, DoneBody, Header
from .pending import Pending
from .question import OnEvent, new_id


@final
class Stream(Pending):
    """Chunks in, chunks out, at most a window of them in between.

    ``tell`` sends a header to the daemon (credit, cancel).
    """

    def __init__(
        self,
        tell: Callable[[Header], None],
        on_event: OnEvent | None = None,
        window_chunks: int = WINDOW_CHUNKS,
    ) -> None:
        super().__init__(new_id(), on_event)
        self.window = ReceiveWindow(window_chunks)
        self.stats: DoneBody | None = None
        self.tokens: list[int] = []
        self.text: list[str] = []
        self._tell = tell
        self._next_seq = 0
        self._cancelled = False
        self._unread: deque[ChunkBody] = deque()

    async def next(self) -> ChunkBody | None:
        """Return the next chunk, None after the last. Raises what the request failed with.

        Chunks that arrived before a failure are returned before it is raised.
        """
        while not self._unread:
            self._raise_if_failed()
            if self.ended:
                return None
            await self._change()
        chunk = self._unread.popleft()
        self.tokens.extend(chunk.tokens)
        self.text.append(chunk.text)
        granted = self.window.consumed()
        if granted and not self.ended:
            self._tell(AddCredit(id=self.id, chunks=granted))
        return chunk

    def cancel(self) -> None:
        """Ask the daemon to stop; the end still comes from there. A no-op after the end."""
        if not self.ended and not self._cancelled:
            self._cancelled = True
            self._tell(Cancel(id=self.id))

    def abandon(self, reason: str, code: ErrorCode = ErrorCode.cancelled) -> None:
        """Cancel in the daemon and end here at once; a no-op after the end."""
        if not self.ended:
            self.cancel()
            self._unread.clear()
            self.fail(DflashError(code, reason))

    def _take(self, message: Message) -> None:
        match message.header:
            case Chunk() as chunk:
                self._take_chunk(chunk, message.body)
            case Done():
                self.stats = decode_body(DoneBody, message.body)
                self._end()
            case _:
                raise self._unexpected(message)

    def _take_chunk(self, chunk: Chunk, body: bytes) -> None:
        if chunk.seq != self._next_seq:
            raise DflashError(
                ErrorCode.protocol, f"chunk {chunk.seq} arrived where {self._next_seq} was due"
            )
        if not self.window.arrived():
            raise DflashError(ErrorCode.protocol, "the daemon sent a chunk without credit for it")
        self._next_seq += 1
        self._unread.append(decode_body(ChunkBody, body))
        self._changed.set()
