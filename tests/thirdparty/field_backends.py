"""A package of other people: two backends that patch attention classes, as seen in the field.

Tests install it as a package of its own (see ``site.py``). It decodes plainly, with the attention
of its models answered by a function of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import msgspec

from dflashd.protocol.messages import CacheBody, ChunkBody, GenerateBody, LoadBody, LoadedBody
from dflashd.worker.cache.registry import CacheRegistry
from dflashd.worker.checkpoints.folders import Checkpoints
from dflashd.worker.engine.border import Statistics
from dflashd.worker.engine.counting import Count
from dflashd.worker.engine.dflash_backend import DflashBackend, MlxModel
from dflashd.worker.engine.generation import Generation
from dflashd.worker.engine.shared import SharedParts
from dflashd.worker.errand import Errand, Progress
from dflashd.worker.hooks.lease import Lease
from dflashd.worker.hooks.model_guard import ModelGuard

Handler = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class PatchedGeneration:
    """A plain generation whose passes run with the patch armed."""

    plain: Generation | Count
    lease: Lease

    @property
    def finished(self) -> bool:
        return self.plain.finished

    def step(self) -> ChunkBody | None:
        with self.lease.armed():
            return self.plain.step()

    def statistics(self) -> Statistics:
        return dataclasses.replace(self.plain.statistics(), engine_reason="attention of our own")

    def close(self) -> None:
        self.plain.close()


@dataclass(frozen=True, slots=True)
class PatchedModel:
    """A plain model, and the claim on its attention class."""

    plain: MlxModel
    lease: Lease

    @property
    def facts(self) -> LoadedBody:
        return self.plain.facts

    def begin(self, body: GenerateBody) -> PatchedGeneration:
        self.lease.check()
        return PatchedGeneration(self.plain.begin(body), self.lease)

    def cache_state(self) -> CacheBody:
        return self.plain.cache_state()

    def clear_cache(self) -> None:
        self.plain.clear_cache()

    def close(self) -> None:
        self.lease.release()
        self.plain.close()


@final
class Patching:
    """Loads plain models and lets ``handler`` answer calls of their attention class."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._plain = DflashBackend(CacheRegistry(), SharedParts())

    def prepare(self, name: str, body: LoadBody, errand: Errand) -> Checkpoints:
        return self._plain.prepare(name, msgspec.structs.replace(body, draft=None), errand)

    def load(
        self,
        name: str,
        body: LoadBody,
        progress: Progress,
        guard: ModelGuard,
        prepared: Checkpoints,
    ) -> PatchedModel:
        body = msgspec.structs.replace(body, draft=None)
        plain = self._plain.load(name, body, progress, guard, prepared)
        layers: Any = plain.model.target.layers
        attention = [layer.self_attn for layer in layers if "self_attn" in layer]
        lease = guard.claim(attention)
        for cls in lease.classes:
            lease.patch(cls, "__call__", self._handler)
        progress("patched", 1, 1, "models")
        return PatchedModel(plain, lease)


answered = {"alpha": 0, "beta": 0}
"""Calls that each backend's function answered."""


def alpha() -> Patching:
    """What the entry point ``field-alpha`` refers to."""
    return Patching(_counting("alpha"))


def beta() -> Patching:
    """What the entry point ``field-beta`` refers to."""
    return Patching(_counting("beta"))


def broken() -> Patching:
    """A backend whose package lacks something."""
    raise ImportError("no module named warp_kernels")


def hollow() -> object:
    """Not a backend at all."""
    return object()


def _counting(name: str) -> Handler:
    def handler(original: Handler, *args: Any, **kwargs: Any) -> Any:
        answered[name] += 1
        return original(*args, **kwargs)

    return handler
