"""The configuration file's JSON Schema, for editors and other programs."""

from __future__ import annotations

import msgspec

from .configuration import Config


def json_schema() -> dict[str, object]:
    """The schema as a JSON object, made from the types that check the file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Configuration of dflashd",
        **msgspec.json.schema(Config),
    }


def text() -> str:
    """The schema as `dflashctl config schema` prints it."""
    return msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode() + "\n"
