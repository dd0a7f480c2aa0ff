"""``[tcp]``: where clients of other machines are let in, with keys."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

from .http_section import is_loopback
from .limits import Bound, Duration

Address = Annotated[
    str,
    Meta(pattern=r"^tcp://([^\s/:;\[\]]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}$", max_length=255),
]


class TcpSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The listener on tcp; it runs when the section is there."""

    listen: Annotated[
        tuple[Address, ...],
        Meta(min_length=1, max_length=16, description='addresses, like "tcp://192.168.1.5:7383"'),
    ]
    control: Annotated[
        bool, Meta(description="let keys of the role control also control the daemon")
    ] = False
    insecure_loopback: Annotated[
        bool,
        Meta(description="no keys and no encryption: any user of this machine may do anything"),
    ] = False
    connections: Annotated[Bound, Meta(description="open at a time; more are cut off")] = 64
    message_bytes: Annotated[
        int, Meta(ge=2**16, le=2**25, description="largest message; a stranger can fill one")
    ] = 4 * 2**20
    canary_interval_s: Annotated[
        Duration, Meta(description="between two proofs that a good key gets in and a bad one not")
    ] = 30

    @property
    def outside(self) -> tuple[str, ...]:
        """Addresses that other machines can reach."""
        return tuple(url for url in self.listen if not is_loopback(host_of(url)))


def host_of(url: str) -> str:
    """The host of an address."""
    found = re.fullmatch(r"tcp://\[?([^\]]+?)\]?:[0-9]+", url)
    return found[1] if found else ""
