"""Who hooks which class: claims, conflicts, and patches that cannot leak.

Hooks are set on instances wherever that is possible (``hooks.py``), but what they rely on is the
class. So every hooked class is claimed under a backend's name before anything is changed. Two
backends never work on one class, and a class that somebody changed behind the guard's back is
refused, not run through.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..protocol.errors import DflashError, ErrorCode
from .fingerprint import Fingerprint, foreign_member, replaced
from .patch import Handler, Patch

log = logging.getLogger(__name__)


class DFlashHookConflict(DflashError):
    """Somebody else works on a class that a model needs. Nothing was changed."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.hook_conflict, message)


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


class Lease:
    """One model's claims. It holds until :meth:`release`."""

    def __init__(
        self, guard: HookGuard, backend: str, model: str, instances: Sequence[Any]
    ) -> None:
        self.backend = backend
        self.model = model
        self.classes: tuple[type, ...] = tuple(dict.fromkeys(type(i) for i in instances))
        self._guard = guard
        self._instances = tuple((instance, type(instance)) for instance in instances)
        self._patches: list[Patch] = []
        # Also when the model is dropped without a word.
        self._given_up = weakref.finalize(self, guard.give_up, self.classes, model)
        self._given_up.atexit = False

    @property
    def held(self) -> bool:
        """Whether the claims still stand."""
        return self._given_up.alive

    def check(self) -> None:
        """Before hooks are used: is everything as it was when the claims were made?

        Raises:
            DFlashHookConflict: naming what was changed.
        """
        self._guard.check(self)
        for instance, cls in self._instances:
            if type(instance) is not cls:
                raise DFlashHookConflict(
                    f"an instance of {_name(cls)} that model {self.model} hooks as "
                    f"{self.backend} was given the class {_name(type(instance))} by other code"
                )

    def patch(self, cls: type, method: str, handler: Handler) -> None:
        """Let ``handler`` answer calls of ``cls.method``, but only inside :meth:`armed`.

        For adapters that cannot do with hooks on instances. The original returns with the last
        release.

        Raises:
            DFlashHookConflict: the class is not claimed by this lease, or was changed.
        """
        self._patches.append(self._guard.install(self, cls, method, handler))

    @contextmanager
    def armed(self) -> Generator[None]:
        """Calls made inside, by this thread, reach the handlers of :meth:`patch`."""
        patches = tuple(self._patches)
        for patch in patches:
            patch.arm()
        try:
            yield
        finally:
            for patch in patches:
                patch.disarm()

    def release(self) -> None:
        """Give the claims up; a second call does nothing."""
        self._given_up()
        self._patches.clear()


class HookGuard:
    """All claims of a process. Calls may come from any thread."""

    def __init__(self) -> None:
        self._claims: dict[type, _Claim] = {}
        self._lock = threading.RLock()

    def claim(self, backend: str, model: str, instances: Iterable[Any]) -> Lease:
        """Claim the classes of all ``instances`` for ``model``, or none of them.

        Raises:
            DFlashHookConflict: naming class, owner, claimant and the models on each side.
        """
        hooked = list(instances)
        classes = tuple(dict.fromkeys(type(instance) for instance in hooked))
        with self._lock:
            for cls in classes:
                self._admit(cls, backend, model)
            for cls in classes:
                claim = self._claims.setdefault(cls, _Claim(backend, Fingerprint.of(cls)))
                claim.models.append(model)
            return Lease(self, backend, model, hooked)

    def owners(self) -> tuple[Ownership, ...]:
        """All claims that stand."""
        with self._lock:
            return tuple(
                Ownership(hooked=cls, owner=claim.owner, models=tuple(claim.models))
                for cls, claim in self._claims.items()
            )

    def check(self, lease: Lease) -> None:
        """Whether the lease's classes look as they have to; raises as :meth:`Lease.check`."""
        with self._lock:
            for cls in lease.classes:
                claim = self._claims.get(cls)
                if claim is None or not lease.held:
                    raise DFlashHookConflict(
                        f"model {lease.model} no longer holds its claim on {_name(cls)}"
                    )
                _check_unchanged(cls, claim, lease.model)

    def install(self, lease: Lease, cls: type, method: str, handler: Handler) -> Patch:
        """See :meth:`Lease.patch`."""
        with self._lock:
            if cls not in lease.classes:
                raise DFlashHookConflict(
                    f"{lease.backend} patches {_name(cls)} for model {lease.model} "
                    "without having claimed it"
                )
            self.check(lease)
            claim = self._claims[cls]
            patch = claim.patches.get(method)
            if patch is None:
                patch = claim.patches[method] = Patch(cls, method, handler)
                patch.install()
                claim.print = Fingerprint.of(cls)
            return patch

    def give_up(self, classes: tuple[type, ...], model: str) -> None:
        """Take one of a model's claims off each of ``classes``; the last one ends all patches."""
        with self._lock:
            for cls in classes:
                claim = self._claims[cls]
                claim.models.remove(model)
                if claim.models:
                    continue
                del self._claims[cls]
                for patch in claim.patches.values():
                    if not patch.restore():
                        log.warning(
                            "patch_left class=%s method=%s reason=other_code_patched_over_it",
                            _name(cls),
                            patch.method,
                        )

    def _admit(self, cls: type, backend: str, model: str) -> None:
        claim = self._claims.get(cls)
        if claim is not None:
            if claim.owner != backend:
                raise DFlashHookConflict(
                    f"{_name(cls)} is hooked by {claim.owner} for {_models(claim.models)}; "
                    f"{backend} cannot hook it for model {model} in this process"
                )
            _check_unchanged(cls, claim, model)
            return
        changed = foreign_member(cls) or (_name(cls) if replaced(cls) else None)
        if changed is not None:
            raise DFlashHookConflict(
                f"{changed} was changed by other code before {backend} could hook "
                f"{_name(cls)} for model {model}"
            )


GUARD = HookGuard()
"""The guard of this process: classes are shared by all that runs in it."""


def _check_unchanged(cls: type, claim: _Claim, model: str) -> None:
    changed = claim.print.change() or (_name(cls) if replaced(cls) else None)
    if changed is not None:
        raise DFlashHookConflict(
            f"{changed} was changed by other code although {claim.owner} hooks {_name(cls)} for "
            f"{_models(claim.models)}; model {model} cannot use it"
        )


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _models(models: list[str]) -> str:
    distinct = sorted(set(models))
    return ("model " if len(distinct) == 1 else "models ") + ", ".join(distinct)
