"""The engine thread: it imports mlx, owns the loop, and sleeps until there is work."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import final

from ...protocol.codec import Message
from ..engine.border import Engine
from ..latch import Latch
from ..log import line, log
from .dispatch import dispatch
from .effects import Effects
from .loop import SLOW_CONSUMER_S, Loop, Pulse
from .watchdog import HANG_S, Watchdog

Command = Callable[[Loop, float], None]
"""Carried out on the engine's thread: gets the loop, and the seconds it has waited for that."""

_ASIDES_END_S = 1.0

_Arrived = tuple[Command, float]
"""A command and the moment it came."""


@final
class EngineThread:
    """Runs a loop on its own thread; ``put`` and ``do`` hand it work from any other.

    ``make_engine`` is called on the thread itself: all mlx work, its import included, is there.
    ``on_end`` is called last, when the loop was stopped or something broke. A hang longer than
    ``hang_s`` ends the process; None: never, for processes that are not ours to end.
    """

    def __init__(
        self,
        make_engine: Callable[[], Engine],
        effects: Effects,
        on_end: Callable[[], None],
        *,
        hang_s: float | None = HANG_S,
        slow_consumer_s: float = SLOW_CONSUMER_S,
    ) -> None:
        # Taken out when it is called: it may refer to whoever holds us, who must be free to go.
        self._makers = [make_engine]
        self._effects = effects
        self._on_end = on_end
        self._slow_consumer_s = slow_consumer_s
        self._watchdog = None if hang_s is None else Watchdog(hang_s)
        self._inbox: queue.SimpleQueue[_Arrived] = queue.SimpleQueue()
        self._loop: Loop | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._over = Latch()
        self._asides: list[threading.Thread] = []
        self.failure: BaseException | None = None
        """What ended the thread, if not a stop."""
        self.ended = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, message: Message) -> None:
        """Hand a message of the supervisor over; it takes effect before the next step."""
        self.do(lambda loop, waited_s: dispatch(message, waited_s, loop, self._effects))

    def do(self, command: Command) -> None:
        """Hand a command over; also from a finaliser. After the end it is dropped."""
        self._inbox.put((command, time.monotonic()))

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's last line; whether it was reached. Also from a signal handler that
        interrupted this very call, which ``Thread.join`` is not made for.
        """
        return self._over.wait(timeout_s)

    @property
    def pulse(self) -> Pulse:
        """Health figures, from any thread; zeros until the engine is up."""
        return Pulse() if self._loop is None else self._loop.pulse

    def _run(self) -> None:
        try:
            self._loop = self._make_loop()
            self._serve(self._loop)
        except BaseException as error:  # noqa: BLE001 - this thread's border
            log.exception(line("engine_broke", error=type(error).__name__))
            self.failure = error
        finally:
            self._end_asides()
            self._rest()
            self.ended = True
            self._on_end()
            self._over.close()

    def _serve(self, loop: Loop) -> None:
        log.info(line("engine_ready"))
        while not loop.stopped:
            if not loop.step() and not loop.stopped:
                self._sleep(loop)

    def _make_loop(self) -> Loop:
        self._beat()
        return Loop(
            self._makers.pop()(),
            self._effects,
            clock=time.monotonic,
            pid=os.getpid(),
            intake=self._take_in,
            alive=self._beat,
            aside=self._aside,
            slow_consumer_s=self._slow_consumer_s,
        )

    def _beat(self) -> None:
        if self._watchdog is not None:
            self._watchdog.beat(time.monotonic())

    def _rest(self) -> None:
        if self._watchdog is not None:
            self._watchdog.rest()

    def _aside(self, name: str, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Do ``work`` on a thread of its own, ``then`` on this one. Raises RuntimeError."""

        def run() -> None:
            work()
            self.do(lambda _loop, _waited_s: then())

        self._asides = [thread for thread in self._asides if thread.is_alive()]
        thread = threading.Thread(target=run, name=f"preparation of {name}", daemon=True)
        thread.start()
        self._asides.append(thread)

    def _end_asides(self) -> None:
        """What was done aside is called off; a thread that a dead disk holds up is left behind."""
        if self._loop is not None:
            self._loop.withdraw_all("the engine has ended")
        until_s = time.monotonic() + _ASIDES_END_S
        for thread in self._asides:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _take_in(self) -> None:
        """Carry out what has arrived; the loop calls this often while it works."""
        while True:
            try:
                arrived = self._inbox.get_nowait()
            except queue.Empty:
                return
            self._carry_out(arrived)

    def _sleep(self, loop: Loop) -> None:
        self._rest()
        try:
            arrived = self._inbox.get(timeout=loop.idle_s())
        except queue.Empty:
            return
        self._beat()
        self._carry_out(arrived)

    def _carry_out(self, arrived: _Arrived) -> None:
        command, arrived_at_s = arrived
        if self._loop is not None:
            command(self._loop, time.monotonic() - arrived_at_s)
