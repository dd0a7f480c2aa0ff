"""``dflashctl events``, ``logs`` and ``metrics``: watching changes nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from ...protocol.messages import EventBody, MetricFamily, MetricSample
from ...protocol.told import LogText
from ..exit_statuses import EXIT_OK
from .connection import asking
from .looks import write_json
from .screen import shown
from .table import Table
from .tables import show
from .words import event_line


def events(options: argparse.Namespace) -> int:
    """Show what happened, and with ``--follow`` what happens."""
    with asking(options) as daemon:
        tell_events(options, daemon.events(last=options.lines, follow=options.follow))
    return EXIT_OK


def tell_events(options: argparse.Namespace, told: Iterable[EventBody]) -> None:
    """Write each as it comes."""
    seen = 0
    for event in told:
        if seen and event.serial > seen + 1:
            gap = f"{event.serial - seen - 1} events were missed: this output is read slowly"
            sys.stderr.write(f"dflashctl: {gap}\n")
        seen = event.serial
        if options.json:
            write_json(event)
        else:
            sys.stdout.write(shown(event_line(event)) + "\n")
        if options.follow:
            sys.stdout.flush()


def logs(options: argparse.Namespace) -> int:
    """Show the log of a model's worker, and with ``--follow`` what it writes."""
    with asking(options) as daemon:
        told = daemon.logs(options.model, lines=options.lines, follow=options.follow)
        if not tell_log(options, told) and options.lines and sys.stderr.isatty():
            sys.stderr.write(f"the worker of {options.model} has written nothing yet\n")
    return EXIT_OK


def tell_log(options: argparse.Namespace, told: Iterable[LogText]) -> bool:
    """Write each piece as it comes; whether there was anything."""
    written = False
    for piece in told:
        written = written or bool(piece.text)
        if piece.missed_bytes:
            gap = f"{piece.missed_bytes} bytes were missed: the log was cut meanwhile"
            sys.stderr.write(f"dflashctl: {gap}\n")
        if options.json:
            write_json(piece)
        else:
            sys.stdout.write(shown(piece.text))
        if options.follow:
            sys.stdout.flush()
    return written


def metrics(options: argparse.Namespace) -> int:
    """Show all metrics."""
    with asking(options) as daemon:
        body = daemon.metrics()
    if options.json:
        write_json(body)
        return EXIT_OK
    rows = [
        (labelled(family.name, sample), amount(family, sample))
        for family in body.families
        for sample in family.samples
        if family.kind != "histogram" or any(sample.counts)
    ]
    show(Table(("METRIC", "VALUE"), rows))
    return EXIT_OK


def labelled(name: str, sample: MetricSample) -> str:
    """A name with its labels."""
    labels = ",".join(f"{key}={value}" for key, value in sample.labels.items())
    return f"{name}{{{labels}}}" if labels else name


def amount(family: MetricFamily, sample: MetricSample) -> str:
    """A sample's value; of a histogram how many, their mean, and what most stay below."""
    if family.kind != "histogram":
        return f"{sample.value:.10g}"
    count = sum(sample.counts)
    passed, bound = 0, 0
    while bound < len(family.bounds) and (passed := passed + sample.counts[bound]) < 0.99 * count:
        bound += 1
    most = f"99 % <= {family.bounds[bound]:g}" if bound < len(family.bounds) else "some above all"
    return f"{count} times, mean {sample.value / count:.3g}, {most}"
