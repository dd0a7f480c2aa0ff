"""The listener on tcp from start to end: keys, handshakes, door, canary; closed when in doubt."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol, final

import zmq

from ...protocol.messages import ServiceStatus
from ..config.tcp_section import TcpSection
from ..doors.door import Door
from ..errors import DaemonError
from ..keys import client_keys
from ..keys.client_keys import ClientKey, Role
from ..keys.server_key import server_key
from ..keys.watched import WatchedKeys
from ..logs.log import line, log
from .canary import BAD_KEY_GOT_IN, NO_KEY_GOT_IN, Canary
from .door import TcpDoor
from .zap import ZapResponder

FAILURES_LIMIT = 2
"""Proofs in a row that a good key does not get in; one may be a busy machine's."""

State = Literal["waiting", "listening", "doubtful", "fatal", "stopped"]


class Board(Protocol):
    """What the listener needs of the switchboard."""

    def open_door(self, door: TcpDoor) -> None:
        """Messages may come through it from now on."""
        ...

    def close_door(self, door: TcpDoor) -> None:
        """No more."""
        ...

    def wake(self, door: Door) -> None:
        """A message may be there."""
        ...

    def lose(self, identities: list[bytes]) -> None:
        """These peers are gone."""
        ...

    def note(self, name: str, fields: Mapping[str, str | float]) -> None:
        """An event for people."""
        ...


@final
class TcpListener:
    """Listens while at least one key is allowed."""

    def __init__(self, section: TcpSection, folder: Path, board: Board) -> None:
        self._section = section
        self._board = board
        self._keys = WatchedKeys(folder / client_keys.NAME, client_keys.client_keys)
        self._by_public: dict[str, ClientKey] = {}
        self._server = None if section.insecure_loopback else server_key(folder)
        self._canary = Canary(section.listen, self._server.public) if self._server else None
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._zap: ZapResponder | None = None
        self._door: TcpDoor | None = None
        self._state: State = "waiting"
        self._reason = ""

    def start(self) -> None:
        """Listen, if a key is allowed. Raises DaemonError when that cannot be."""
        self._look_at_keys()
        self._open_if_wanted()

    def look(self) -> None:
        """Follow the keys and the connections; begin to listen when a first key is allowed."""
        if self._state in ("fatal", "stopped"):
            return
        self._look_at_keys()
        if self._door is None:
            try:
                self._open_if_wanted()
            except DaemonError as error:
                log.error(line("tcp_failed", reason=error))
                self._close("fatal", str(error))
            return
        if self._zap is not None:
            self._zap.turn()
        self._door.watch()
        self._board.lose(self._door.gone())

    async def guard(self) -> None:
        """Have the canary prove the lock, for ever; when it fails, close."""
        failures = 0
        while self._canary is not None and self._state != "fatal":
            if self._door is not None:
                failures = await self._prove(self._canary, self._door, failures)
            quiet_s = self._section.canary_interval_s if not failures else 1.0
            await asyncio.sleep(quiet_s if self._door is not None else 1.0)

    def stop(self) -> None:
        """The daemon ends."""
        self._close("stopped", "")

    def status(self) -> ServiceStatus:
        """How it is."""
        return ServiceStatus(
            name="tcp",
            state=self._state,
            pid=None,
            address=" ".join(self._section.listen),
            restarts=0,
            reason=self._reason,
        )

    async def _prove(self, canary: Canary, door: TcpDoor, failures: int) -> int:
        try:
            problem = await canary.problem()
        except Exception as error:  # noqa: BLE001 (without a proof there is no trust)
            log.exception(line("tcp_canary_failed"))
            problem = f"no proof can be made that the right keys get in ({error})"
        if door is not self._door:
            return 0
        if not problem:
            self._trust()
            return 0
        open_to_all = problem in (BAD_KEY_GOT_IN, NO_KEY_GOT_IN)
        if door.is_full and not open_to_all:
            return 0  # nobody gets in, and for another reason
        if open_to_all or failures + 1 >= FAILURES_LIMIT:
            self._close("fatal", f"{problem}: closed until dflashd is started again")
        else:
            self._state, self._reason = "doubtful", f"{problem}; it is tried once more"
        return failures + 1

    def _trust(self) -> None:
        self._state = "listening"
        self._reason = "" if self._server is not None else "without keys (insecure_loopback)"

    def _look_at_keys(self) -> None:
        if self._server is None or not self._keys.look():
            return
        before, after = self._by_public, {key.public: key for key in self._keys.keys}
        self._by_public = after
        for key in before.values():
            if key.public not in after:
                self._board.note("tcp_key_revoked", {"key": key.name})
        if self._keys.problem:
            log.error(line("tcp_keys_unusable", reason=self._keys.problem))
        if self._door is not None:
            self._board.lose(self._door.expel())
            if not after:
                why = self._keys.problem or "the last key was revoked"
                self._close("waiting", why)

    def _open_if_wanted(self) -> None:
        if self._server is not None and not self._by_public:
            hint = "no key is allowed: `dflashctl keys new NAME` makes one"
            self._reason = self._keys.problem or hint
            return
        self._context = zmq.Context()
        try:
            if self._server is not None:
                self._zap = ZapResponder(self._context, self._admits)
            door = TcpDoor(self._context, self._section, self._server, self._role_of)
        except (zmq.ZMQError, OSError) as error:
            self._drop_context()
            urls = " ".join(self._section.listen)
            raise DaemonError(f"{urls} cannot be bound: {error}") from error
        loop = asyncio.get_running_loop()
        loop.add_reader(door.fileno(), self._board.wake, door)
        loop.add_reader(door.monitor_fileno(), door.watch)
        self._door = door
        self._board.open_door(door)
        self._trust()
        self._board.note("tcp_opened", {"address": " ".join(self._section.listen)})

    def _close(self, state: State, reason: str) -> None:
        self._state, self._reason = state, reason
        door, self._door = self._door, None
        if door is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(door.fileno())
            loop.remove_reader(door.monitor_fileno())
            self._board.lose(door.expel_all() if state != "stopped" else [])
            self._board.close_door(door)
            door.close()
            if state == "fatal":
                log.error(line("tcp_unsafe", reason=reason))
            self._board.note("tcp_closed", {"reason": reason or "the daemon stops"})
        self._drop_context()

    def _drop_context(self) -> None:
        if self._zap is not None:
            self._zap.close()
        context, self._zap, self._context = self._context, None, None
        if context is not None:
            context.term()

    def _admits(self, public: str) -> bool:
        is_canary = self._canary is not None and public == self._canary.public
        return is_canary or public in self._by_public

    def _role_of(self, public: str) -> Role | None:
        if self._server is None:
            return "control" if self._section.control else "request"
        key = self._by_public.get(public)
        if key is None:
            return None
        return key.role if self._section.control else "request"
