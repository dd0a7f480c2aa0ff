"""The guard as the load of one model sees it."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any, final

from .guard import HookGuard
from .lease import Lease


@final
class ModelGuard:
    """Makes all claims in one backend's and one model's name."""

    def __init__(self, guard: HookGuard, backend: str, model: str) -> None:
        self.backend = backend
        self.model = model
        self._guard = guard
        self._leases: list[Lease] = []

    def claim(self, instances: Iterable[Any]) -> Lease:
        """Claim the classes of all ``instances``, or none of them.

        Raises:
            DFlashHookConflict: naming class, owner, claimant and the models on each side.
        """
        lease = self._guard.claim(self.backend, self.model, instances)
        self._leases.append(lease)
        return lease

    @contextmanager
    def undone_on_failure(self) -> Generator[None]:
        """Whatever the block raises, no claim that was made in it is left."""
        try:
            yield
        except BaseException:
            for lease in self._leases:
                lease.release()
            raise
