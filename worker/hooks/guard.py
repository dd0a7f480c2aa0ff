"""Who hooks which class: claims, conflicts, and patches that cannot leak.

Hooks are set on instances wherever that is possible (``instances.py``), but what they rely on is
the class. So every hooked class is claimed under a backend's name before anything is changed. Two
backends never work on one class or on a class and its base, and a class that somebody changed
behind the guard's back is refused, not run through.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

from ...protocol.errors import DflashError, ErrorCode
from ..errors import DFlashHookConflict
from ..log import line, log
from .fingerprint import Fingerprint, foreign_member, replaced
from .lease import Lease, full_name
from .patch import Patch


@dataclass(slots=True)
class _Claim:
    """One class: its owner, the models that hold it (once per lease), and how it has to look."""

    owner: str
    print: Fingerprint
    models: list[str] = field(default_factory=list[str])
    patches: dict[str, Patch] = field(default_factory=dict[str, Patch])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """A claimed class as others may see it."""

    hooked: type
    owner: str
    models: tuple[str, ...]


@final
class HookGuard:
    """All claims of a process. Calls may come from any thread."""

    def __init__(self) -> None:
        self._claims: dict[type, _Claim] = {}
        self._lock = threading.Lock()
        self._inside: int | None = None
        """The thread that holds the lock."""
        self._given_up: deque[tuple[tuple[type, ...], str]] = deque()
        """Claims of leases that ended and are still in the table."""

    def claim(self, backend: str, model: str, instances: Iterable[Any]) -> Lease:
        """Claim the classes of all ``instances`` for ``model``, or none of them.

        Raises:
            DFlashHookConflict: naming class, owner, claimant and the models on each side.
        """
        hooked = list(instances)
        classes = tuple(dict.fromkeys(type(instance) for instance in hooked))
        with self._entered():
            for cls in classes:
                self._admit(cls, backend, model)
            for cls in classes:
                claim = self._claims.setdefault(cls, _Claim(backend, Fingerprint.of(cls)))
                claim.models.append(model)
            return Lease(self, backend, model, hooked)

    def owners(self) -> tuple[Ownership, ...]:
        """All claims that stand. Waits for nobody, so that a signal handler may look too."""
        self._settle()
        return tuple(
            Ownership(hooked=cls, owner=claim.owner, models=tuple(claim.models))
            for cls, claim in tuple(self._claims.items())
        )

    def check(self, lease: Lease) -> None:
        """Whether the lease's classes look as they have to; raises as :meth:`Lease.check`."""
        with self._entered():
            self._check(lease)

    def install(self, lease: Lease, cls: type, method: str) -> Patch:
        """See :meth:`Lease.patch`."""
        with self._entered():
            if cls not in lease.classes:
                raise DFlashHookConflict(
                    f"{lease.backend} patches {full_name(cls)} for model {lease.model} "
                    "without having claimed it"
                )
            self._check(lease)
            claim = self._claims[cls]
            patch = claim.patches.get(method)
            if patch is None:
                patch = Patch(cls, method)
                patch.install()
                claim.patches[method] = patch
                self._changed_by_us(patch)
            return patch

    def give_up(self, classes: tuple[type, ...], model: str) -> None:
        """Take one of a model's claims off each of ``classes``; the last one ends all patches.

        Comes from any thread at any moment, also out of the garbage collector while this very
        thread is in the guard. So it never waits: who is in the guard does it on leaving.
        """
        self._given_up.append((classes, model))
        self._settle()

    @contextmanager
    def _entered(self) -> Generator[None]:
        me = threading.get_ident()
        if self._inside == me:
            raise DflashError(
                ErrorCode.unsupported,
                "a signal handler uses the hooks that its own thread is changing: let it set a "
                "flag, and load models elsewhere",
            )
        try:
            with self._lock:
                self._inside = me
                try:
                    self._take_off()
                    yield
                finally:
                    self._inside = None
        finally:
            self._settle()

    def _settle(self) -> None:
        while self._given_up and self._lock.acquire(blocking=False):
            try:
                self._take_off()
            finally:
                self._lock.release()

    def _take_off(self) -> None:
        while self._given_up:
            classes, model = self._given_up.popleft()
            for cls in classes:
                claim = self._claims[cls]
                claim.models.remove(model)
                if not claim.models:
                    del self._claims[cls]
                    self._end(claim)

    def _end(self, claim: _Claim) -> None:
        for patch in claim.patches.values():
            if patch.restore():
                self._changed_by_us(patch)
            else:
                where = {"class": full_name(patch.cls), "method": patch.method}
                log.warning(line("patch_left", **where, reason="other code patched over it"))

    def _changed_by_us(self, patch: Patch) -> None:
        """Classes below the patched one look different too, and that is as it should be."""
        for cls, claim in self._claims.items():
            if issubclass(cls, patch.cls):
                claim.print = claim.print.with_member(patch.cls, patch.method)

    def _check(self, lease: Lease) -> None:
        for cls in lease.classes:
            claim = self._claims.get(cls)
            if claim is None or not lease.held:
                raise DFlashHookConflict(
                    f"model {lease.model} no longer holds its claim on {full_name(cls)}"
                )
            _check_unchanged(cls, claim, lease.model)

    def _admit(self, cls: type, backend: str, model: str) -> None:
        for other, claim in self._claims.items():
            if claim.owner != backend and (issubclass(cls, other) or issubclass(other, cls)):
                related = "" if cls is other else f", which is related to {full_name(cls)},"
                raise DFlashHookConflict(
                    f"{full_name(other)}{related} is hooked by {claim.owner} for "
                    f"{_models(claim.models)}; {backend} cannot hook it for model {model} in this "
                    "process"
                )
        claim = self._claims.get(cls)
        if claim is not None:
            _check_unchanged(cls, claim, model)
            return
        changed = foreign_member(cls, self._patched()) or (full_name(cls) if replaced(cls) else "")
        if changed:
            raise DFlashHookConflict(
                f"{changed} was changed by other code before {backend} could hook "
                f"{full_name(cls)} for model {model}"
            )

    def _patched(self) -> list[Any]:
        """What we ourselves have put in place of methods."""
        claims = self._claims.values()
        return [patch.standing for claim in claims for patch in claim.patches.values()]


GUARD = HookGuard()
"""The guard of this process: classes are shared by all that runs in it."""


def _check_unchanged(cls: type, claim: _Claim, model: str) -> None:
    changed = claim.print.change() or (full_name(cls) if replaced(cls) else None)
    if changed is not None:
        raise DFlashHookConflict(
            f"{changed} was changed by other code although {claim.owner} hooks {full_name(cls)} "
            f"for {_models(claim.models)}; model {model} cannot use it"
        )


def _models(models: list[str]) -> str:
    distinct = sorted(set(models))
    return ("model " if len(distinct) == 1 else "models ") + ", ".join(distinct)
