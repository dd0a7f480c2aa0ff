"""The core's tables as admission reckons with them: who is in memory, and how much of it."""

from __future__ import annotations

from typing import Literal

from .facts import ModelFacts
from .holdings import Holdings, Resident, Slot, corrected, sizes
from .life import OUTSIDE, WITHOUT_PROCESS, Residency
from .records import Model, Worker
from .state import State


def holdings(s: State, now: float) -> Holdings:
    """All that counts against the pool, until its end is confirmed."""
    running = [w for w in s.workers.values() if w.state not in WITHOUT_PROCESS]
    return Holdings(
        residents=tuple(
            resident(s, model, now) for model in s.models.values() if model.state not in OUTSIDE
        ),
        slots={worker.name: slot(worker) for worker in running},
        pool_bytes=s.pool_bytes,
    )


def slot(worker: Worker) -> Slot:
    """What a worker was seen to hold."""
    return Slot(
        name=worker.name,
        measured_bytes=worker.memory_bytes,
        settled_bytes=worker.settled_bytes,
    )


def resident(s: State, model: Model, now: float) -> Resident:
    """A model as it counts, resident or about to be."""
    facts = model.facts or ModelFacts(unknown="not looked at")
    weights, own_bytes, guessed = sizes(facts, s.pool_bytes)
    if guessed and model.guess_bytes is not None:
        own_bytes = model.guess_bytes
    if model.loaded is not None and guessed:
        own_bytes, guessed = model.loaded.memory_bytes - model.shared_bytes, False
    elif model.loaded is not None:
        facts = corrected(facts, model.loaded)
        weights, own_bytes = facts.weights, facts.own_bytes
    return Resident(
        name=model.name,
        slot=model.worker,
        weights=weights,
        own_bytes=own_bytes,
        state=standing(model),
        pinned=model.pinned,
        leased=is_leased(s, model),
        wanted=model.wanted,
        fresh=now < fresh_until(s, model),
        last_used_at=model.idle_since,
        guessed=guessed,
    )


def standing(model: Model) -> Literal["loading", "ready", "leaving"]:
    """A model's state as admission tells them apart."""
    if model.state is Residency.ready:
        return "ready"
    return "leaving" if model.state in (Residency.draining, Residency.unloading) else "loading"


def is_leased(s: State, model: Model) -> bool:
    """Whether its worker has a request of it, answered or not."""
    active = s.worker_of(model).active.values()
    return any(request.model == model.name for request in active)


def fresh_until(s: State, model: Model) -> float:
    """Until when a ready model may not be made to go: else two models could push each other out."""
    return model.ready_at + s.limits.min_residency_s
