"""What a key may be called: it ends up in logs and on terminals."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ..errors import KeyRefused

KeyName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]


def checked_name(name: str) -> str:
    """The name, if it may be a key's. Raises KeyRefused."""
    try:
        return msgspec.convert(name, KeyName)
    except msgspec.ValidationError as error:
        raise KeyRefused(
            "a key's name is up to 64 letters, digits and ._@-, beginning with a letter or a digit"
        ) from error
