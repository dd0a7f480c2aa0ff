"""The caches of this process, one for each identity."""

from __future__ import annotations

from collections import Counter
from typing import final

from ...protocol.messages import CacheSettings
from ..log import line, log
from .disk import DiskSettings
from .identity import CacheIdentity, Fingerprint
from .manager import FLUSH_S, CacheManager, CacheStuck


@final
class CacheRegistry:
    """Different identities live side by side. One object for as long as nothing changes.

    All calls on the thread that owns the models.
    """

    def __init__(self) -> None:
        self._managers: dict[CacheIdentity, CacheManager] = {}
        self._holders: Counter[CacheManager] = Counter()
        self._stuck: list[CacheManager] = []
        self._current: CacheManager | None = None

    @property
    def managers(self) -> tuple[CacheManager, ...]:
        """All that are open, oldest first."""
        return tuple(self._managers.values())

    @property
    def stuck(self) -> tuple[CacheManager, ...]:
        """Those whose shutdown failed and has not succeeded since."""
        return tuple(self._stuck)

    def resolve(
        self,
        identity: CacheIdentity,
        fingerprint: Fingerprint,
        settings: CacheSettings,
        disk: DiskSettings | None = None,
    ) -> CacheManager | None:
        """The manager of ``identity``; None if ``settings`` switch it off. See :meth:`release`.

        With another fingerprint or other settings than before, the present one is retired and
        replaced; all others are left alone. A retirement that fails is logged and listed in
        ``stuck``: its successor works, without the directory if that is still held.
        """
        present = self._managers.get(identity)
        if present is not None:
            same = (present.fingerprint, present.settings, present.disk_settings)
            if settings.enabled and same == (fingerprint, settings, disk):
                self._current = present
                self._holders[present] += 1
                return present
            try:
                self.shutdown(identity)
            except CacheStuck as error:
                log.warning(line("cache_stuck", identity=identity.short, reason=error))
        if not settings.enabled:
            return None
        manager = CacheManager(identity, fingerprint, settings, disk)
        self._managers[identity] = self._current = manager
        self._holders[manager] = 1
        return manager

    def release(self, manager: CacheManager, timeout_s: float = FLUSH_S) -> None:
        """One of those who resolved ``manager`` has gone; the last one retires it.

        A model that replaces another of the same identity may go on with its cache, or has one of
        its own by then: neither is touched. Raises CacheStuck.
        """
        if self._holders[manager] > 1:
            self._holders[manager] -= 1
        elif manager in (*self.managers, *self._stuck):
            self._retire([manager], timeout_s)

    def current(self) -> CacheManager | None:
        """The most recently resolved one that is still open."""
        return self._current

    def shutdown(self, identity: CacheIdentity | None = None, timeout_s: float = FLUSH_S) -> None:
        """Retire one, or all; also those that were stuck before. Unknown ones: nothing to do.

        Raises CacheStuck after all were tried, if some still write; ``stuck`` lists them.
        """
        chosen = [m for m in self._managers.values() if identity in (None, m.identity)]
        chosen += [m for m in self._stuck if identity in (None, m.identity)]
        self._retire(chosen, timeout_s)

    def _retire(self, chosen: list[CacheManager], timeout_s: float) -> None:
        failed: list[CacheStuck] = []
        for manager in chosen:
            if self._managers.get(manager.identity) is manager:
                del self._managers[manager.identity]
            if self._current is manager:
                self._current = None
            del self._holders[manager]
            try:
                manager.retire(timeout_s)
            except CacheStuck as error:
                failed.append(error)
        self._stuck = [m for m in {*self._stuck, *chosen} if m.state == "stuck"]
        if failed:
            raise CacheStuck("; ".join(str(error) for error in failed))
