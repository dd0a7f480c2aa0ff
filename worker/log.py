"""Log lines of the worker: an event name and ``key=value`` pairs, on stderr."""

from __future__ import annotations

import json
import logging
import re
import sys

log = logging.getLogger("dflashd.worker")
"""The worker's logger."""

_PLAIN = re.compile(r"[\w.:/+@%-]+\Z", re.ASCII)


def line(event: str, /, **fields: object) -> str:
    """One log line; a value that is not a plain word is quoted, so that it stays one line."""
    return " ".join([event, *(f"{key}={_value(value)}" for key, value in fields.items())])


def _value(value: object) -> str:
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if _PLAIN.match(text) else json.dumps(text)


def configure(worker: str, epoch: int) -> None:
    """Send the log to stderr, each line with time, level, worker and epoch."""
    handler = logging.StreamHandler(sys.stderr)
    where = f"worker={_value(worker)} epoch={epoch}".replace("%", "%%")
    handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s %(message)s {where}"))
    logging.getLogger().addHandler(handler)
    # Libraries stay at their default, warnings: a hub client logs every request.
    logging.getLogger("dflashd").setLevel(logging.INFO)
