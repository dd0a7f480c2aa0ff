"""``[models.NAME]``: what a worker needs to load a model, and how the supervisor treats it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ...protocol.messages import LoadBody, Name
from .limits import Duration


class ModelSection(LoadBody, frozen=True, kw_only=True):
    """One configured model; the fields of :class:`LoadBody` are the worker's, these are ours."""

    group: Annotated[
        Name | None, Meta(description="models of one group share a worker, and equal weights")
    ] = None
    placement: Annotated[
        Literal["auto", "strict"],
        Meta(description="of a model its group cannot hold: a worker of its own, or an error"),
    ] = "auto"
    preload: Annotated[bool, Meta(description="load when the daemon starts")] = False
    pinned: Annotated[bool, Meta(description="never evict to make room, never unload idle")] = False
    idle_ttl_s: Annotated[
        Duration | None, Meta(description="unload when no request ended for so long")
    ] = None

    @property
    def load_body(self) -> LoadBody:
        """What is sent to the worker."""
        return LoadBody(**{name: getattr(self, name) for name in LoadBody.__struct_fields__})
