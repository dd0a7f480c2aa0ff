"""The allow-list of clients on tcp: names, roles and public keys; there is no secret in it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from ...protocol.key_file import Z85Key
from ..errors import KeyRefused
from .key_name import KeyName, checked_name, taken_out
from .private_file import changing, read_value, write_value

NAME = "clients.json"

Role = Literal["request", "control"]
"""``request``: generations only. ``control``: those, and all that the daemon's owner may do."""


class ClientKey(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may connect, and as what."""

    name: KeyName
    role: Role
    public: Z85Key
    added_unix_s: float


def client_keys(folder: Path) -> tuple[ClientKey, ...]:
    """All keys that are allowed. Raises UnsafeFile."""
    return read_value(folder / NAME, tuple[ClientKey, ...]) or ()


def allow(folder: Path, name: str, public: str, role: Role) -> ClientKey:
    """Let a key in from now on. Raises KeyRefused or UnsafeFile."""
    try:
        checked = msgspec.convert(public, Z85Key)
    except msgspec.ValidationError as error:
        raise KeyRefused(
            "a public key is 40 characters, as `dflashctl keys new` prints it"
        ) from error
    key = ClientKey(name=checked_name(name), role=role, public=checked, added_unix_s=time.time())
    with changing(folder):
        keys = client_keys(folder)
        if any(known.name == name for known in keys):
            raise KeyRefused(f"there is a key {name} already: `dflashctl keys revoke {name}` first")
        if twin := next((known for known in keys if known.public == public), None):
            raise KeyRefused(f"this key is allowed already, as {twin.name}")
        write_value(folder / NAME, (*keys, key))
    return key


def revoke(folder: Path, name: str) -> ClientKey:
    """Let a key in no more. Raises KeyRefused or UnsafeFile."""
    with changing(folder):
        key, others = taken_out(client_keys(folder), name, "key")
        write_value(folder / NAME, others)
    return key
