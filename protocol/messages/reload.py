"""A changed configuration: the question, and what it changes."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from .base import Body, Header, Report
from .fields import Name, RequestId, Sentence, Text

PathText = Annotated[str, Meta(min_length=1, max_length=4096)]


class Reload(Header, tag="reload", frozen=True, kw_only=True):
    """Read the configuration again and change to it, or with ``dry_run`` only say what would
    change. Answered by :class:`Reloaded`; a file that cannot be used fails and changes nothing.
    A dry run may bring another text in :class:`ConfigBody`.
    """

    id: RequestId
    dry_run: bool = False


class ConfigBody(Body, frozen=True, kw_only=True):
    """Configuration text; ``source`` names it in answers, its paths count from ``base_dir``."""

    text: Text
    source: PathText
    base_dir: PathText


class Reloaded(Header, tag="reloaded", frozen=True, kw_only=True):
    """Answer to :class:`Reload`; body: :class:`ReloadBody`."""

    id: RequestId


class KeyChange(Report, frozen=True, kw_only=True):
    """One key of the configuration with another value, both as they are written there."""

    key: Annotated[str, Meta(max_length=256)]
    before: Sentence
    after: Sentence


class ModelChange(Report, frozen=True, kw_only=True):
    """What becomes of one model: ``adjusted`` keeps its worker, ``replaced`` does not."""

    name: Name
    change: Literal["kept", "adjusted", "replaced", "removed", "added"]
    reason: Sentence = ""
    keys: tuple[KeyChange, ...] = ()


class ReloadBody(Report, frozen=True, kw_only=True):
    """What a reload changes. ``daemon``: keys that change at once; ``restart``: keys that are
    ignored until the daemon is started again.
    """

    source: Annotated[str, Meta(max_length=4096)]
    dry_run: bool
    models: tuple[ModelChange, ...]
    daemon: tuple[KeyChange, ...] = ()
    restart: tuple[KeyChange, ...] = ()
