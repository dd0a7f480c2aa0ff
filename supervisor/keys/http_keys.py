"""API keys of HTTP clients: what is stored does not tell the key.

A key is 256 random bits, so nobody can try all of them: one SHA-256 is as one-way here as a slow
hash, which passwords need. A slow one would let strangers spend our CPU with every wrong key.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from ..errors import KeyRefused
from .key_name import KeyName, checked_name, taken_out
from .private_file import changing, read_value, write_value

NAME = "http.json"
NO_KEY = "no API key exists: `dflashctl keys new --http NAME` makes one"
PREFIX = "dfl-"
"""By which people, and scanners of published code, know one."""

KEY_BYTES = 32


class HttpKey(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may ask over HTTP."""

    name: KeyName
    digest: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    added_unix_s: float


def http_keys(folder: Path) -> tuple[HttpKey, ...]:
    """All keys that are allowed. Raises UnsafeFile."""
    return read_value(folder / NAME, tuple[HttpKey, ...]) or ()


def new_http_key(folder: Path, name: str) -> str:
    """Make a key and let it in; what is returned is kept nowhere. Raises KeyRefused, UnsafeFile."""
    text = PREFIX + secrets.token_urlsafe(KEY_BYTES)
    key = HttpKey(name=checked_name(name), digest=digest_of(text), added_unix_s=time.time())
    with changing(folder):
        keys = http_keys(folder)
        if any(known.name == name for known in keys):
            hint = f"`dflashctl keys revoke --http {name}` first"
            raise KeyRefused(f"there is an HTTP key {name} already: {hint}")
        write_value(folder / NAME, (*keys, key))
    return text


def revoke_http_key(folder: Path, name: str) -> HttpKey:
    """Let a key in no more. Raises KeyRefused or UnsafeFile."""
    with changing(folder):
        key, others = taken_out(http_keys(folder), name, "HTTP key")
        write_value(folder / NAME, others)
    return key


def holder(keys: Iterable[HttpKey], text: str) -> HttpKey | None:
    """Whose key this is. Takes as long for a wrong key as for any right one."""
    digest = digest_of(text)
    found: HttpKey | None = None
    for key in keys:
        if hmac.compare_digest(key.digest, digest):
            found = key
    return found


def digest_of(text: str) -> str:
    """What is stored of a key."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
