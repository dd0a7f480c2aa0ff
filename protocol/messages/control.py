"""What the owner sends on the control socket."""

from __future__ import annotations

from .base import Header
from .fields import Name, RequestId


class Status(Header, tag="status", frozen=True, kw_only=True):
    """Ask for a :class:`Snapshot`. Never loads a model and never resets an idle clock."""

    id: RequestId


class Spawn(Header, tag="spawn", frozen=True, kw_only=True):
    """Load ``model`` now, in the worker ``group`` if that is given; Event(progress) while it loads,
    Done when it is ready.
    """

    id: RequestId
    model: Name
    group: Name | None = None


class Retire(Header, tag="retire", frozen=True, kw_only=True):
    """Unload ``model``: drain its requests first, or with ``now`` fail them; Done when gone."""

    id: RequestId
    model: Name
    now: bool = False


class Pin(Header, tag="pin", frozen=True, kw_only=True):
    """Never evict ``model`` nor unload it for being idle; with ``pinned`` false, do again."""

    id: RequestId
    model: Name
    pinned: bool = True


class ReadCache(Header, tag="read_cache", frozen=True, kw_only=True):
    """Ask for a loaded model's :class:`CacheState` (client to supervisor to worker)."""

    id: RequestId
    model: Name


class ClearCache(Header, tag="clear_cache", frozen=True, kw_only=True):
    """Empty a loaded model's cache, disk included; answered by the :class:`CacheState` after it."""

    id: RequestId
    model: Name


class Shutdown(Header, tag="shutdown", frozen=True, kw_only=True):
    """Stop the daemon; ``now`` skips the drain. Done is sent before the sockets close."""

    id: RequestId
    now: bool = False
