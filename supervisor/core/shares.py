"""How much waits of each client, and how much of the queues each may have: as much as is left.

Who has waiting as much as there is still room for gets no more. So one client alone fills half of
a queue, two fill a third each, and somebody new finds a place however hard others try: no number
of clients has to be known beforehand. Switches share out their buffers like this ("dynamic
thresholds").
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import final

from .events import Peer

Client = Peer | str
"""Who has a share: a connection of this machine; on tcp the key, however many connect with it."""


@dataclass(slots=True, kw_only=True, eq=False)
class Share:
    """What waits of one client."""

    requests: int = 0
    prompt_bytes: int = 0
    models: Counter[str] = field(default_factory=Counter[str])


@dataclass(slots=True, frozen=True, kw_only=True)
class Room:
    """What may still wait: of a model's requests, of all, and of their prompts."""

    model_requests: int
    requests: int
    prompt_bytes: int

    def has_none_for(self, body_bytes: int) -> bool:
        """Whether nobody could have such a request wait."""
        return min(self.model_requests, self.requests) <= 0 or body_bytes > self.prompt_bytes

    def is_less_than(self, share: Share, model: str) -> bool:
        """Whether a client has its share already."""
        return (
            share.models[model] >= self.model_requests
            or share.requests >= self.requests
            or share.prompt_bytes >= self.prompt_bytes > 0
        )


@final
class Shares:
    """Of everybody of whom something waits."""

    def __init__(self) -> None:
        self._shares: dict[Client, Share] = {}

    def __len__(self) -> int:
        return len(self._shares)

    def of(self, client: Client) -> Share:
        """A client's, perhaps an empty one."""
        return self._shares.get(client) or Share()

    def add(self, client: Client, model: str, body_bytes: int) -> None:
        """One more request waits."""
        share = self._shares.setdefault(client, Share())
        share.requests += 1
        share.prompt_bytes += body_bytes
        share.models[model] += 1

    def remove(self, client: Client, model: str, body_bytes: int) -> None:
        """One of them waits no more."""
        share = self._shares[client]
        share.requests -= 1
        share.prompt_bytes -= body_bytes
        share.models[model] -= 1
        if not share.requests:
            del self._shares[client]
