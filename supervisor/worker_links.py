"""Which routing id of the workers' socket is which process of ours."""

from __future__ import annotations

from typing import NamedTuple, final

from ..protocol.messages import Header, Register
from .processes.workers import Processes


class Link(NamedTuple):
    """One incarnation of a worker."""

    worker: str
    epoch: int


@final
class WorkerLinks:
    """Only what proves to be a process that we started is linked."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._links: dict[bytes, Link] = {}

    def get(self, identity: bytes) -> Link | None:
        """Whose routing id that is."""
        return self._links.get(identity)

    def admit(self, identity: bytes, header: Header) -> Link | None:
        """Link a routing id by the first message that came from it; None: it is nobody of ours."""
        if not isinstance(header, Register):
            return None
        link = Link(header.worker, header.epoch)
        if identity != routing_id(*link):
            return None
        if not self._processes.is_known(*link, header.pid, header.secret):
            return None
        self._links[identity] = link
        return link

    def end(self, worker: str, epoch: int) -> bytes:
        """The process has ended; the routing id it had."""
        identity = routing_id(worker, epoch)
        self._links.pop(identity, None)
        return identity


def routing_id(worker: str, epoch: int) -> bytes:
    """The name of one worker incarnation on the workers' socket."""
    return f"{worker}-{epoch}".encode()
