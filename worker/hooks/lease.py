"""One model's claims on the classes whose instances it hooks."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, final

from ..errors import DFlashHookConflict
from .patch import Handler, Patch


class Claims(Protocol):
    """The table that a lease stands in: the guard's."""

    def check(self, lease: Lease) -> None: ...
    def install(self, lease: Lease, cls: type, method: str) -> Patch: ...
    def give_up(self, classes: tuple[type, ...], model: str) -> None: ...


@final
class Lease:
    """Claims that hold until :meth:`release`, or until the lease is dropped without a word."""

    def __init__(self, guard: Claims, backend: str, model: str, instances: Sequence[Any]) -> None:
        self.backend = backend
        self.model = model
        self.classes: tuple[type, ...] = tuple(dict.fromkeys(type(i) for i in instances))
        self._guard = guard
        self._instances = tuple((instance, type(instance)) for instance in instances)
        self._patches: list[tuple[Patch, Handler]] = []
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
                    f"an instance of {full_name(cls)} that model {self.model} hooks as "
                    f"{self.backend} was given the class {full_name(type(instance))} by other code"
                )

    def patch(self, cls: type, method: str, handler: Handler) -> None:
        """Let ``handler`` answer calls of ``cls.method``, but only inside :meth:`armed`.

        For adapters that cannot do with hooks on instances. The original returns with the last
        release of the class.

        Raises:
            DFlashHookConflict: the class is not claimed by this lease, or was changed.
        """
        self._patches.append((self._guard.install(self, cls, method), handler))

    @contextmanager
    def armed(self) -> Generator[None]:
        """Calls made inside, by this thread, reach the handlers of :meth:`patch`.

        Raises:
            DFlashHookConflict: the claims were given up, or other code took a patch's place.
        """
        if not self.held:
            raise DFlashHookConflict(f"model {self.model} no longer holds its claims")
        patches = tuple(self._patches)
        for patch, _ in patches:
            if not patch.in_place:
                raise DFlashHookConflict(
                    f"{full_name(patch.cls)}.{patch.method} was changed by other code although "
                    f"{self.backend} patches it for model {self.model}"
                )
        for patch, handler in patches:
            patch.arm(handler)
        try:
            yield
        finally:
            for patch, _ in patches:
                patch.disarm()

    def release(self) -> None:
        """Give the claims up; a second call does nothing."""
        self._given_up()
        self._patches.clear()
        self._instances = ()


def full_name(cls: type) -> str:
    """As people look for it."""
    return f"{cls.__module__}.{cls.__qualname__}"
