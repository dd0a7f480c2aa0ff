"""The daemon's own key pair on tcp; clients know its public half."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from ...protocol.key_file import Z85Key, new_pair
from ..errors import UnsafeFile
from .private_file import changing, read_private, write_private

NAME = "server.json"


class ServerKey(Struct, frozen=True, kw_only=True):
    """A CURVE key pair."""

    public: Z85Key
    secret: Z85Key


def server_key(folder: Path) -> ServerKey:
    """The key pair in ``folder``, made on first use. Raises UnsafeFile."""
    path = folder / NAME
    with changing(folder):
        content = read_private(path)
        if content is None:
            public, secret = new_pair()
            key = ServerKey(public=public, secret=secret)
            write_private(path, msgspec.json.encode(key))
            return key
    try:
        return msgspec.json.decode(content, type=ServerKey)
    except msgspec.MsgspecError as error:
        raise UnsafeFile(f"{path} cannot be used: {error}") from error
