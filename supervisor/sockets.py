"""All sockets of the daemon: one for workers, and one for each way in that clients have."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from typing import Literal, final

import zmq

from ..protocol.messages import FromClient, FromControl, FromWorker
from ..protocol.paths import Endpoints
from .core.events import ClientOverflowed, ClientVanished, Peer
from .doors.door import CLIENT_BURST_MESSAGES, WORKER_BURST_MESSAGES, Delivery, Door
from .doors.local import LocalDoor
from .errors import DaemonError
from .tcp.door import TcpDoor

ClientDoor = Literal["requests", "control", "tcp"]


@final
class Sockets:
    """Nothing here ever waits."""

    def __init__(self, clients: dict[ClientDoor, Door], workers: Door) -> None:
        self.clients = clients
        self.workers = workers

    def __iter__(self) -> Iterator[Door]:
        yield from self.clients.values()
        yield self.workers

    @property
    def are_behind(self) -> bool:
        """Whether some peer has yet to take what it was sent."""
        return any(door.is_behind for door in self)

    @property
    def may_have_message(self) -> bool:
        """Whether something may have arrived."""
        return any(door.may_have_message for door in self)

    def let_in(self, *, new_clients: bool) -> None:
        """Open or shut the clients' doors for connections that are not there yet."""
        for door in self.clients.values():
            door.let_in(new_peers=new_clients)

    def open_tcp(self, door: TcpDoor) -> None:
        """Clients may come through a door on tcp, too."""
        self.clients["tcp"] = door

    def close_tcp(self, door: TcpDoor) -> None:
        """They may not any more."""
        if self.clients.get("tcp") is door:
            del self.clients["tcp"]

    def send_to_client(
        self, peer: Peer, frames: list[bytes]
    ) -> ClientVanished | ClientOverflowed | None:
        """Send; what that has shown of the client, if it does not take it."""
        door = self.clients.get(peer.door)  # on tcp it may have been closed
        delivery = Delivery.peer_gone if door is None else door.send(peer.identity, frames)
        match delivery:
            case Delivery.on_its_way:
                return None
            case Delivery.peer_gone:
                return ClientVanished(peer=peer)
            case Delivery.peer_slow | Delivery.dropped:
                return ClientOverflowed(peer=peer)

    def send_to_worker(self, identity: bytes, frames: list[bytes]) -> bool:
        """Send; False: it cannot be reached."""
        delivery = self.workers.send(identity, frames)
        return delivery not in (Delivery.peer_gone, Delivery.dropped)

    def flush_clients(self) -> Iterator[Peer]:
        """Send what waits; those who are gone."""
        for name, door in self.clients.items():
            if door.is_behind:
                yield from [Peer(name, identity) for identity in door.flush()]

    def counters(self) -> dict[str, float]:
        """What each has counted, under its name."""
        return {
            f"{door.name}_{key}": value for door in self for key, value in door.counters.items()
        }


@contextlib.contextmanager
def open_sockets(endpoints: Endpoints) -> Generator[Sockets]:
    """Bind those of this machine; close all, then wait for last messages. Raises DaemonError."""
    kinds = (
        (FromClient, CLIENT_BURST_MESSAGES),
        (FromControl, CLIENT_BURST_MESSAGES),
        (FromWorker, WORKER_BURST_MESSAGES),
    )
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    doors: list[Door] = []
    try:
        for path, (kind, burst_messages) in zip(endpoints.paths, kinds, strict=True):
            try:
                doors.append(LocalDoor(context, path, kind, burst_messages=burst_messages))
            except (zmq.ZMQError, OSError) as error:
                raise DaemonError(f"{path} cannot be bound: {error}") from error
        requests, control, workers = doors
        yield Sockets({"requests": requests, "control": control}, workers)
    finally:
        for door in doors:
            door.close()
        context.term()
