"""What a person or a dashboard watches the daemon by: events, workers' logs, metrics."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from .base import Header, Report
from .fields import WINDOW_CHUNKS, Count, Credit, Name, RequestId, Sentence

LOG_LINES_LIMIT = 10_000
EVENTS_LIMIT = 2**20


class Subscribe(Header, tag="subscribe", frozen=True, kw_only=True):
    """Ask for the ``last`` events that are kept (None: all), then, with ``follow``, for those to
    come: :class:`Happened`…, then Done, which only a follower never gets.
    """

    id: RequestId
    last: Annotated[int, Meta(ge=0, le=EVENTS_LIMIT)] | None = None
    follow: bool = False
    credit: Credit = WINDOW_CHUNKS


class Logs(Header, tag="logs", frozen=True, kw_only=True):
    """Ask for the last ``lines`` of the log of ``model``'s worker, then, with ``follow``, for what
    is written from then on: :class:`LogPart`…, then Done, which only a follower never gets.
    """

    id: RequestId
    model: Name
    lines: Annotated[int, Meta(ge=0, le=LOG_LINES_LIMIT)] = 100
    follow: bool = False
    credit: Credit = WINDOW_CHUNKS


class Metrics(Header, tag="metrics", frozen=True, kw_only=True):
    """Ask for :class:`Measured`. Never loads a model and never resets an idle clock."""

    id: RequestId


class Happened(Header, tag="happened", frozen=True, kw_only=True):
    """One event of the daemon; body: :class:`EventBody`. ``missed`` events before it are lost to
    this subscriber, who read too slowly.
    """

    id: RequestId
    missed: Count = 0


class LogPart(Header, tag="log_part", frozen=True, kw_only=True):
    """The next bytes of a log; body: :class:`LogBody`. ``missed`` bytes before it are gone."""

    id: RequestId
    missed: Count = 0


class Measured(Header, tag="measured", frozen=True, kw_only=True):
    """Answer to :class:`Metrics`; body: :class:`MetricsBody`."""

    id: RequestId


class EventBody(Report, frozen=True, kw_only=True):
    """Something that happened: ``name`` in the past tense, ``serial`` counts from 1, no gaps."""

    serial: Count
    at_unix_s: Annotated[float, Meta(ge=0)]
    name: Annotated[str, Meta(max_length=64)]
    fields: dict[str, str | float] = {}


class LogBody(Report, frozen=True, kw_only=True):
    """Bytes as the worker wrote them: a part need not end where a line or a character does."""

    data: Annotated[bytes, Meta(max_length=2**20)]


class MetricSample(Report, frozen=True, kw_only=True):
    """One number of a family. Of a histogram ``value`` is the sum of all that was observed."""

    labels: dict[str, str] = {}
    value: float = 0.0
    counts: tuple[Count, ...] = ()


class MetricFamily(Report, frozen=True, kw_only=True):
    """One metric with its unit in its name. ``counts`` of a histogram's samples: how many were at
    most each of ``bounds`` and above the one before; the last counts those above all.
    """

    name: Annotated[str, Meta(max_length=128)]
    kind: Literal["gauge", "counter", "histogram"]
    help: Sentence
    samples: tuple[MetricSample, ...] = ()
    bounds: tuple[float, ...] = ()


class MetricsBody(Report, frozen=True, kw_only=True):
    """All metrics of the daemon."""

    families: tuple[MetricFamily, ...]

    def by_model(self, name: str) -> dict[str, float]:
        """Each model's value of the family ``name``."""
        return {
            sample.labels["model"]: sample.value
            for family in self.families
            if family.name == name
            for sample in family.samples
        }
