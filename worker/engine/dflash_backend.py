"""Our own backend: DFlash and plain decoding on mlx-lm's models, each with a prefix cache.

Imports mlx: only for processes that prepared the BLAS.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import final

from ...protocol.messages import CacheBody, GenerateBody, LoadBody, LoadedBody
from ..cache.manager import CacheStuck
from ..cache.open import OpenCache, open_cache
from ..cache.registry import CacheRegistry
from ..checkpoints.folders import Checkpoints, find
from ..errand import Errand, Progress
from ..hooks.model_guard import ModelGuard
from ..log import line, log
from .counting import Count
from .generation import Generation
from .loader import load_model
from .model import Model
from .shared import SharedParts


@dataclass(frozen=True, slots=True)
class MlxModel:
    """A loaded model with its prefix cache, as the loop sees it."""

    model: Model
    cache: OpenCache
    caches: CacheRegistry

    @property
    def facts(self) -> LoadedBody:
        """What the load found."""
        return LoadedBody(
            digest=self.model.digest,
            engine=self.model.engine,
            block_tokens=self.model.block_tokens,
            context_tokens=self.model.context_tokens,
            memory_bytes=self.model.memory_bytes,
            device=self.model.device,
            dtype=self.model.dtype,
            shared_bytes=self.model.shared_bytes,
            target_digest=self.model.identity.target_digest,
            draft_digest=self.model.identity.draft_digest or "",
            block_tokens_limit=self.model.block_tokens_limit,
        )

    def begin(self, body: GenerateBody) -> Generation | Count:
        """Start a request. Raises DflashError(bad_request | unsupported | hook_conflict)."""
        if body.count_only:
            return Count(self.model, body)
        return Generation(self.model, body, self.cache)

    def cache_state(self) -> CacheBody:
        """What people see of its cache."""
        manager = self.cache.manager
        return CacheBody(state=self.cache.reason) if manager is None else manager.report()

    def clear_cache(self) -> None:
        """Forget all prefixes, in memory and on disk."""
        if self.cache.manager is not None:
            self.cache.manager.clear()

    def close(self) -> None:
        """Give up its hooks and retire its cache; what waits for the disk is written, within a
        limit.
        """
        self.model.close()
        if self.cache.manager is None:
            return
        try:
            self.caches.release(self.cache.manager)
        except CacheStuck as error:
            log.warning(line("cache_stuck", model=self.model.name, reason=error))


@final
class DflashBackend:
    """Models that have weights in common hold them once."""

    def __init__(self, caches: CacheRegistry, shared: SharedParts) -> None:
        self._caches = caches
        self._shared = shared

    def prepare(self, name: str, body: LoadBody, errand: Errand) -> Checkpoints:
        """Fetch and read the files."""
        return find(body, errand)

    def load(
        self,
        name: str,
        body: LoadBody,
        progress: Progress,
        guard: ModelGuard,
        prepared: Checkpoints,
    ) -> MlxModel:
        """Load a model whole, or raise and keep nothing of it."""
        model = load_model(name, body, progress, guard, self._shared, found=prepared)
        with ExitStack() as on_failure:
            on_failure.callback(model.close)
            layers = model.target.make_caches()
            layers += model.drafter.draft.make_caches() if model.drafter else []
            cache = open_cache(self._caches, model.identity, model.fingerprint, body.cache, layers)
            on_failure.pop_all()
        return MlxModel(model, cache, self._caches)
