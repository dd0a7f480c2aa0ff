"""What headers and bodies have in common."""

from __future__ import annotations

from msgspec import Struct

# Defaults are not sent: a peer that lacks a newer field only minds if the field is used.
# A default is therefore part of the contract and never changes.


class Header(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """Base of all headers; unknown optional fields of a header are ignored."""


class Body(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of all bodies. One that asks is refused with an unknown field: nothing asked for is
    ever ignored.
    """


class Report(Body, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Base of the bodies that tell; a reader ignores what it does not know."""
