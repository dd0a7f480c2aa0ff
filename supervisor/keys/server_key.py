"""The daemon's own key pair on tcp; clients know its public half."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from ...protocol.key_file import Z85Key, new_pair
from .private_file import changing, read_value, write_value

NAME = "server.json"


class ServerKey(Struct, frozen=True, kw_only=True):
    """A CURVE key pair."""

    public: Z85Key
    secret: Z85Key


def server_key(folder: Path) -> ServerKey:
    """The key pair in ``folder``, made on first use. Raises UnsafeFile."""
    path = folder / NAME
    with changing(folder):
        key = read_value(path, ServerKey)
        if key is None:
            public, secret = new_pair()
            key = ServerKey(public=public, secret=secret)
            write_value(path, key)
        return key
