"""What those who wait are told: their position, and what it is that they wait for."""

from __future__ import annotations

from ...protocol.messages import Accepted
from .life import Residency, WorkerState
from .records import SENTENCE_CHARACTERS, Model, Request
from .state import State


def announce(s: State, model: Model, now: float) -> None:
    """Tell those who wait for a model what they wait for, when that changed."""
    if not model.queue:
        return
    sentence = waits_for(s, model)[:SENTENCE_CHARACTERS]
    for position, request in enumerate(model.queue.values(), start=1):
        if request.told != sentence:
            tell_position(s, request, position, sentence, now)


def tell_position(s: State, request: Request, position: int, sentence: str, now: float) -> None:
    """Tell one waiting request's client where it stands."""
    request.told = sentence
    request.told_at = now
    s.tell(request.peer, Accepted(id=request.id, position=position, waits_for=sentence))


def waits_for(s: State, model: Model) -> str:
    """What the queue of a model waits for, in words."""
    match model.state:
        case Residency.ready:
            return f"a free place: the worker of {model.name} computes as many requests as it may"
        case Residency.loading if model.ordered:
            return f"{model.name} is loading"
        case Residency.draining | Residency.unloading:
            why = model.going or f"{model.name} was unloaded"
            return f"{why}; it is loaded again when that is done"
        case Residency.backoff | Residency.fatal:
            return f"{model.name} is loaded again soon: {model.reason}"
        case Residency.absent | Residency.loading:
            return waits_for_worker(s, model)


def waits_for_worker(s: State, model: Model) -> str:
    """What a model waits for that has no place in a worker yet, in words."""
    worker = s.worker_of(model)
    if model.waits:
        return model.waits
    match worker.state:
        case WorkerState.stopped | WorkerState.spawning | WorkerState.registering:
            return f"the worker of {model.name} is starting"
        case WorkerState.loading | WorkerState.ready | WorkerState.busy:
            first = next((m.name for m in s.models_of(worker) if m.ordered), None)
            return f"{model.name} is loaded next" + (f", after {first}" if first else "")
        case WorkerState.stopping:
            return f"{model.name} is loaded when the worker before it is gone"
        case WorkerState.lost | WorkerState.backoff | WorkerState.fatal:
            return f"{model.name} is restarted: its worker {worker.reason}"
