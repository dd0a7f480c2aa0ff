"""A load in one call: what a loop does beside the engine and on its thread, one after the other."""

from __future__ import annotations

from dflashd.protocol.messages import LoadBody
from dflashd.worker.engine.border import HeldModel
from dflashd.worker.engine.mlx_engine import MlxEngine
from dflashd.worker.errand import Errand, Progress


def load(
    engine: MlxEngine, name: str, body: LoadBody, progress: Progress = lambda *_: None
) -> HeldModel:
    """The model, or what either half raises."""
    prepared = engine.prepare(name, body, Errand(progress))
    return engine.load(name, body, progress, prepared)
