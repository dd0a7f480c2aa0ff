"""A process beside the workers that the daemon keeps running: the HTTP gateway.

It serves clients and decides nothing here: nothing in the core knows of it, so neither its crash
nor its absence touches a model or a route.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Literal, final

from ...protocol.messages import ServiceStatus
from ..config.limits import Limits
from ..config.restarts import pause_s, recent
from ..exit_statuses import EXIT_CONFIGURATION
from ..logs.log import line, log
from ..process_ends import described, last_words
from .workers import Processes

State = Literal["stopped", "waiting", "running", "backoff", "fatal"]


@final
class Companion:
    """One such process; ``processes`` is its own, with its command; ``limits`` those in effect.

    ``lacks`` says what it cannot start without, and is empty when that is there.
    """

    def __init__(
        self,
        name: str,
        processes: Processes,
        limits: Callable[[], Limits],
        random: Callable[[], float],
        *,
        address: str,
        lacks: Callable[[], str] = str,
    ) -> None:
        self._name = name
        self._processes = processes
        self._limits = limits
        self._random = random
        self._address = address
        self._lacks = lacks
        self._state: State = "stopped"
        self._pid: int | None = None
        self._epoch = 0
        self._started_at = 0.0
        self._failures: list[float] = []
        self._reason = ""
        self._retry: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()
        self._stopping = False
        processes.on_exit = self._ended

    def start(self) -> None:
        """Start it; what fails is tried again later."""
        self._retry = None
        if reason := self._lacks():
            self._wait(reason)
            return
        self._epoch += 1
        self._started_at = time.monotonic()
        self._gone.clear()
        try:
            self._pid = self._processes.start(self._name, self._epoch, cpu_share=1)
        except OSError as error:
            self._failed(f"it cannot be started: {error}")
            return
        if self._state != "backoff":
            self._reason = ""
        self._state = "running"
        log.info(line("service_started", service=self._name, pid=self._pid, address=self._address))

    def look(self) -> None:
        """Start it when what it waited for is there."""
        if self._state == "waiting":
            self.start()

    def revive(self) -> None:
        """Start it anew if it failed: what was wrong may have been mended."""
        if self._state in ("fatal", "backoff") and not self._stopping:
            if self._retry is not None:
                self._retry.cancel()
            self._failures.clear()
            self.start()

    async def stop(self) -> None:
        """Ask it to leave, at last make it; bounded."""
        self._stopping = True
        if self._retry is not None:
            self._retry.cancel()
        for how in ("terminate", "kill"):
            if self._pid is None:
                break
            _ = self._processes.signal(self._name, self._epoch, how)
            try:
                async with asyncio.timeout(self._limits().stop_timeout_s):
                    await self._gone.wait()
            except TimeoutError:
                continue
        self._state = "stopped"

    def kill(self) -> None:
        """End it now, at the daemon's own unexpected end."""
        self._stopping = True
        self._processes.kill_all()

    def status(self) -> ServiceStatus:
        """How it is."""
        loop = asyncio.get_running_loop()
        retry_in_s = None if self._retry is None else max(0.0, self._retry.when() - loop.time())
        return ServiceStatus(
            name=self._name.lstrip("_"),
            state=self._state,
            pid=self._pid,
            address=self._address,
            restarts=max(0, self._epoch - 1),
            retry_in_s=retry_in_s,
            reason=self._told(),
        )

    def _told(self) -> str:
        """Why it is as it is; of one that runs, why it had to be started again a short time ago."""
        if self._state != "running" or not self._reason:
            return self._reason
        is_stable = time.monotonic() - self._started_at >= self._limits().stable_s
        return "" if is_stable else f"started again a short time ago, since {self._reason}"

    def _wait(self, reason: str) -> None:
        if (self._state, self._reason) != ("waiting", reason):
            log.error(line("service_waits", service=self._name, reason=reason))
        self._state, self._reason = "waiting", reason

    def _ended(self, _name: str, epoch: int, status: int, log_tail: str) -> None:
        log.info(line("service_exited", service=self._name, epoch=epoch, status=status))
        self._pid = None
        self._gone.set()
        if self._stopping:
            return
        if reason := self._lacks():
            self._wait(reason)
            return
        if time.monotonic() - self._started_at >= self._limits().stable_s:
            self._failures.clear()
        words = last_words(log_tail)
        reason = f"it {described(status)}" + (f"; its last words: {words}" if words else "")
        self._failed(reason, final=status == EXIT_CONFIGURATION)

    def _failed(self, reason: str, *, final: bool = False) -> None:
        now = time.monotonic()
        self._reason = reason
        self._failures = recent(self._failures, now, self._limits())
        wait_s = None if final else pause_s(self._failures, self._limits(), self._random())
        if wait_s is None:
            self._state = "fatal"
            log.error(line("service_fatal", service=self._name, reason=reason))
            return
        self._state = "backoff"
        log.warning(line("service_failed", service=self._name, reason=reason, retry_in_s=wait_s))
        self._retry = asyncio.get_running_loop().call_later(wait_s, self.start)
