"""States, times and events in words, as several commands show them."""

from __future__ import annotations

from datetime import datetime

from ...protocol.messages import EventBody, ModelStatus, WorkerStatus


def state_of(model: ModelStatus, worker: WorkerStatus) -> str:
    """A model's state, with how far a load is or when a failed one is tried again."""
    state = model.state
    if model.stage:
        state += f": {model.stage}"
        if model.stage_total:
            state += f" {100 * model.stage_done // model.stage_total} %"
    elif (left_s := model.retry_in_s or worker.retry_in_s) is not None:
        state += f" ({left_s:.0f} s)"
    return state


def event_line(event: EventBody) -> str:
    """One event on one line, at this machine's time of day."""
    from ..logs.log import line_of_event  # brings Python's logging along, which takes time

    at = datetime.fromtimestamp(event.at_unix_s).astimezone()
    return f"{at:%F %T}.{at.microsecond // 1000:03d} {line_of_event(event)}"


def duration(seconds: float) -> str:
    """Time for a person."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
