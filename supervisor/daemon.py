"""The daemon from start to end: directories, lock, sockets, signals, clock."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import secrets
import signal
import sys
import time
from collections.abc import Callable, Generator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import final

import zmq

from ..protocol.messages import FromClient, FromControl, FromWorker
from ..protocol.paths import Endpoints
from .config import Config
from .core.events import ServingBegan, ShutdownAsked, TimePassed
from .core.machine import Core
from .core.snapshot import Identity
from .directories import make_private, remove_sockets
from .door import Door
from .errors import DaemonError
from .inspector import Inspector
from .instance_lock import InstanceLock
from .log import line, log
from .pool import memory_pool
from .process_registry import ProcessRegistry
from .processes import Processes
from .switchboard import Switchboard

WORKER_COMMAND = (sys.executable, "-P", "-m", "dflashd.worker")
"""``-P``: what happens to lie in the working directory is not imported."""

TICK_S = 0.25
"""Longest time between two looks at the clock: a new deadline may be nearer than the last."""

FLUSH_S = 0.01
"""Time between two tries to send to a peer whose pipe is full."""

FAREWELL_S = 1.0
"""How long last messages may take to leave when the daemon stops."""

OPEN_FILES = 65_536


@final
class Daemon:
    """One run of the daemon; :meth:`run` returns when it has stopped in an orderly way."""

    def __init__(self, config: Config, *, worker_command: Sequence[str] = WORKER_COMMAND) -> None:
        self._config = config
        self._worker_command = worker_command
        self._instance = secrets.token_hex(16)
        self._stopped = asyncio.Event()
        self._turn_is_due = False
        section = config.daemon
        self._pool = memory_pool(section.memory_share, section.memory_bytes)

    async def run(self, on_ready: Callable[[str], None]) -> None:
        """Serve until told to stop; ``on_ready`` gets a sentence. Raises DaemonError."""
        raise_open_files()
        runtime_dir, state_dir = self._config.runtime_dir, self._config.state_dir
        endpoints = Endpoints(runtime_dir)
        make_private(runtime_dir)
        make_private(state_dir)
        make_private(state_dir / "logs")
        with InstanceLock(runtime_dir, self._instance):
            registry = ProcessRegistry(runtime_dir, self._instance)
            for entry in registry.sweep():
                log.warning(line("orphan_killed", worker=entry.worker, pid=entry.pid))
            for path in remove_sockets(endpoints.paths):
                log.info(line("stale_socket_removed", path=path))
            with contextlib.closing(registry), open_doors(endpoints) as doors:
                await self._serve(doors, endpoints, registry, on_ready)

    async def _serve(
        self,
        doors: tuple[Door, Door, Door],
        endpoints: Endpoints,
        registry: ProcessRegistry,
        on_ready: Callable[[str], None],
    ) -> None:
        requests, control, workers = doors
        processes = Processes(
            self._worker_command,
            workers_url=endpoints.workers,
            log_dir=self._config.state_dir / "logs",
            instance=self._instance,
            registry=registry,
            models=tuple(self._config.models),
        )
        limits, pool = self._config.daemon, self._pool
        self._board = Switchboard(
            self._core(),
            {"requests": requests, "control": control},
            workers,
            processes,
            inspector=Inspector(
                concurrency=limits.active_requests_per_worker, pool_bytes=pool.budget_bytes
            ),
            on_stop=self._stopped.set,
        )
        loop = asyncio.get_running_loop()
        for door in doors:
            loop.add_reader(door.fileno(), self._wake, door)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._board.give, ShutdownAsked())
        # Reload is not offered yet; the default action would leave sockets behind.
        loop.add_signal_handler(signal.SIGHUP, log.info, line("sighup_ignored"))
        try:
            async with asyncio.TaskGroup() as tasks:
                clock = tasks.create_task(self._watch_clock())
                on_ready(self._ready_sentence())
                self._board.give(ServingBegan())
                await self._stopped.wait()
                clock.cancel()
            await self._say_farewell()
        finally:
            processes.kill_all()
            for door in doors:
                loop.remove_reader(door.fileno())

    def _core(self) -> Core:
        identity = Identity(
            instance=self._instance,
            version=version("dflashd"),
            pid=os.getpid(),
            started_at=time.monotonic(),
        )
        return Core(
            self._config.daemon,
            self._config.models,
            identity,
            random.random,
            pool_bytes=self._pool.budget_bytes,
        )

    def _ready_sentence(self) -> str:
        models = ", ".join(self._config.models) or "none"
        where = self._config.runtime_dir
        return f"dflashd is ready in {where} (pid {os.getpid()}, models: {models})"

    def _wake(self, door: Door) -> None:
        door.stir()
        self._turn()

    def _turn(self) -> None:
        self._turn_is_due = False
        if self._board.turn() and not self._turn_is_due:
            self._turn_is_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    async def _watch_clock(self) -> None:
        while True:
            self._board.flush()
            self._board.give(TimePassed())
            self._turn()
            left_s = self._board.next_deadline - time.monotonic()
            rest_s = FLUSH_S if self._board.is_behind else max(FLUSH_S, min(TICK_S, left_s))
            await asyncio.sleep(rest_s)

    async def _say_farewell(self) -> None:
        end = time.monotonic() + FAREWELL_S
        while self._board.is_behind and time.monotonic() < end:
            self._board.flush()
            await asyncio.sleep(FLUSH_S)


@contextlib.contextmanager
def open_doors(endpoints: Endpoints) -> Generator[tuple[Door, Door, Door]]:
    """Bind requests, control and workers; close them, then wait for last messages to leave."""
    paths: tuple[Path, ...] = endpoints.paths
    kinds = (FromClient, FromControl, FromWorker)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    doors: list[Door] = []
    try:
        for path, kind in zip(paths, kinds, strict=True):
            try:
                doors.append(Door(context, path, kind))
            except (zmq.ZMQError, OSError) as error:
                raise DaemonError(f"{path} cannot be bound: {error}") from error
        requests, control, workers = doors
        yield requests, control, workers
    finally:
        for door in doors:
            door.close()
        context.term()


def raise_open_files() -> None:
    """Raise the soft limit of open files: running out of them would abort the process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
