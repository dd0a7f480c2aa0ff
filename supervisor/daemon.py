"""The daemon from start to end: directories, lock, sockets, signals, clock."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import signal
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import final

import zmq

from ..protocol.messages import FromClient, FromControl, FromWorker
from ..protocol.paths import Endpoints
from ..protocol.version import VERSION
from . import open_files
from .config_source import ConfigSource
from .core.events import ReloadAsked, ServingBegan, ShutdownAsked, TimePassed
from .core.machine import Core
from .core.snapshot import Identity
from .directories import make_private, remove_sockets
from .doors.door import CLIENT_BURST_MESSAGES, WORKER_BURST_MESSAGES, Door
from .doors.local import LocalDoor
from .doors.names import make_unguessable
from .errors import DaemonError
from .gateway.settings import GatewaySettings, written
from .inspection.inspector import Inspector
from .instance_lock import InstanceLock
from .keys import http_keys
from .keys.watched import WatchedKeys
from .logs.keeper import LogKeeper
from .logs.log import line, log
from .logs.worker_logs import WorkerLogs
from .pool import memory_pool
from .processes.companion import Companion
from .processes.lifeline import Lifeline
from .processes.registry import ProcessRegistry
from .processes.workers import Processes
from .service.notify import ServiceNotifier
from .sockets import Sockets
from .switchboard import Switchboard
from .tcp.listener import TcpListener
from .watching.lookout import Lookout

GATEWAY_COMMAND = (sys.executable, "-P", "-m", "dflashd.supervisor.gateway")
GATEWAY_NAME = "_http"
"""No model may be called so: the names of log files are apart."""

WORKER_COMMAND = (sys.executable, "-P", "-m", "dflashd.worker")
"""``-P``: what happens to lie in the working directory is not imported."""

TICK_S = 0.25
"""Longest time between two looks at the clock: a new deadline may be nearer than the last."""

WATCH_S = 0.5
"""Time between two looks at the configuration file; a change must outlast one of them."""

FLUSH_S = 0.01
"""Time between two tries to send to a peer whose pipe is full."""

FAREWELL_S = 1.0
"""How long last messages may take to leave when the daemon stops."""

LAST_READ_S = 0.1
"""Time for clients to read their last messages: ZeroMQ drops at their side what is unread when
the connection goes.
"""


@final
class Daemon:
    """One run of the daemon; :meth:`run` returns when it has stopped in an orderly way.

    ``with_parent``: it also stops, at once, when the process that started it has gone.
    """

    def __init__(
        self,
        configs: ConfigSource,
        *,
        worker_command: Sequence[str] = WORKER_COMMAND,
        with_parent: bool = False,
    ) -> None:
        self._configs = configs
        self._config = configs.current
        self._worker_command = worker_command
        self._lifeline = Lifeline(self._parent_went) if with_parent else None
        self._instance = secrets.token_hex(16)
        self._service = ServiceNotifier.take(os.environ, os.getpid())
        self._stopped = asyncio.Event()
        self._turn_is_due = False
        section = self._config.daemon
        self._pool = memory_pool(section.memory_share, section.memory_bytes)
        self._open_files = open_files.OpenFiles()
        self._tcp: TcpListener | None = None
        self._gateway: Companion | None = None

    async def run(self, on_ready: Callable[[str], None]) -> None:
        """Serve until told to stop; ``on_ready`` gets a sentence. Raises DaemonError."""
        open_files.raise_limit()
        make_unguessable()
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
        limits = self._config.daemon
        logs = WorkerLogs(
            self._config.state_dir / "logs",
            worker_bytes=limits.log_bytes_per_worker,
            all_bytes=limits.log_bytes,
        )
        processes = self._processes(self._worker_command, registry, logs, endpoints.workers)
        self._registry = registry
        self._gateway = gateway = self._gateway_process(registry, logs)
        self._lookout = Lookout(limits, logs, on_event=self._happened)
        self._board = self._switchboard(doors, processes)
        loop = asyncio.get_running_loop()
        self._attend(loop, doors)
        try:
            self._tcp = self._listener()
            with LogKeeper(logs):
                await self._work(gateway, on_ready)
            await self._say_farewell()
            if gateway is not None:
                await gateway.stop()
        finally:
            processes.kill_all()
            if self._tcp is not None:
                self._tcp.stop()
            if gateway is not None:
                gateway.kill()
            if self._lifeline is not None:
                self._lifeline.release()
            self._service.close()
            for door in doors:
                loop.remove_reader(door.fileno())

    async def _work(self, gateway: Companion | None, on_ready: Callable[[str], None]) -> None:
        """Serve until the core has stopped."""
        async with asyncio.TaskGroup() as tasks:
            watches = [
                tasks.create_task(self._watch_clock()),
                tasks.create_task(self._watch_config()),
            ]
            if self._tcp is not None:
                watches.append(tasks.create_task(self._tcp.guard()))
            if gateway is not None:
                gateway.start()
            on_ready(self._ready_sentence())
            self._service.ready(self._ready_sentence())
            self._board.give(ServingBegan())
            await self._stopped.wait()
            for watch in watches:
                watch.cancel()

    def _switchboard(self, doors: tuple[Door, Door, Door], processes: Processes) -> Switchboard:
        requests, control, workers = doors
        return Switchboard(
            self._core(),
            Sockets({"requests": requests, "control": control}, workers),
            processes,
            inspector=Inspector(
                concurrency=self._config.daemon.active_requests_per_worker,
                pool_bytes=self._pool.budget_bytes,
            ),
            configs=self._configs,
            lookout=self._lookout,
            on_stop=self._stopped.set,
            services=lambda: tuple(each.status() for each in (self._gateway, self._tcp) if each),
            problems=lambda: tuple(filter(None, [self._registry.problem])),
        )

    def _processes(
        self, command: Sequence[str], registry: ProcessRegistry, logs: WorkerLogs, url: str = ""
    ) -> Processes:
        """Workers, where ``url`` is their socket, or the gateway."""
        return Processes(
            command,
            workers_url=url,
            logs=logs,
            instance=self._instance,
            registry=registry,
            hang_s=self._config.daemon.worker_hang_s,
            models=tuple(self._config.models) if url else (),
        )

    def _attend(self, loop: asyncio.AbstractEventLoop, doors: tuple[Door, ...]) -> None:
        """Be called when something arrives: a message, a signal, the parent's end."""
        for door in doors:
            loop.add_reader(door.fileno(), self._wake, door)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._board.give, ShutdownAsked())
        if self._lifeline is not None:
            self._lifeline.hold()
        loop.add_signal_handler(signal.SIGHUP, self._board.give, ReloadAsked(cause="signal"))

    def _listener(self) -> TcpListener | None:
        section = self._config.tcp
        if section is None:
            return None
        listener = TcpListener(section, self._config.keys_dir, self._board, self._wake)
        listener.start()
        return listener

    def _gateway_process(self, registry: ProcessRegistry, logs: WorkerLogs) -> Companion | None:
        http = self._config.http
        if http is None:
            return None
        settings = GatewaySettings(
            runtime_dir=str(self._config.runtime_dir),
            keys_dir=str(self._config.keys_dir),
            http=http,
        )
        processes = self._processes((*GATEWAY_COMMAND, written(settings)), registry, logs)
        limits = self._config.daemon
        keys = WatchedKeys(self._config.keys_dir / http_keys.NAME, http_keys.http_keys)

        def lacks() -> str:
            _ = keys.look()
            return "" if keys.keys or not http.asks_for_keys else keys.problem or http_keys.NO_KEY

        return Companion(
            GATEWAY_NAME, processes, limits, random.random, address=http.url, lacks=lacks
        )

    def _core(self) -> Core:
        identity = Identity(
            instance=self._instance,
            version=VERSION,
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
        if door.is_behind:  # what woke us may be that a peer reads again
            self._board.flush()
        self._turn()

    def _happened(self, name: str) -> None:
        self._service.happened(name)
        if name == "config_reloaded" and self._gateway is not None:
            self._gateway.revive()

    def _parent_went(self) -> None:
        log.warning(line("parent_gone"))
        # Twice: nobody is left for whom running requests should finish.
        self._board.give(ShutdownAsked())
        self._board.give(ShutdownAsked())

    def _turn(self) -> None:
        self._turn_is_due = False
        if self._board.turn() and not self._turn_is_due:
            self._turn_is_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    async def _watch_clock(self) -> None:
        while True:
            if self._lifeline is not None:
                self._lifeline.check()
            self._service.beat(time.monotonic())
            self._board.flush()
            if self._tcp is not None:
                self._tcp.look()
            if self._gateway is not None:
                self._gateway.look()
            self._registry.look()
            self._board.give(TimePassed())
            self._turn()
            if self._open_files.look():
                self._board.let_in(new_clients=not self._open_files.are_short)
            left_s = self._board.next_deadline - time.monotonic()
            soon_s = FLUSH_S if self._board.is_behind else min(TICK_S, left_s)
            rest_s = max(FLUSH_S, min(soon_s, self._open_files.look_s))
            due_s = time.monotonic() + rest_s
            await asyncio.sleep(rest_s)
            self._lookout.lag.observe(max(0.0, time.monotonic() - due_s))

    async def _watch_config(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            if self._configs.has_changed:
                self._board.give(ReloadAsked(cause="file"))

    async def _say_farewell(self) -> None:
        end = time.monotonic() + FAREWELL_S
        while self._board.is_behind and time.monotonic() < end:
            self._board.flush()
            await asyncio.sleep(FLUSH_S)
        await asyncio.sleep(LAST_READ_S)


@contextlib.contextmanager
def open_doors(endpoints: Endpoints) -> Generator[tuple[Door, Door, Door]]:
    """Bind requests, control and workers; close them, then wait for last messages to leave."""
    paths: tuple[Path, ...] = endpoints.paths
    kinds = (
        (FromClient, CLIENT_BURST_MESSAGES),
        (FromControl, CLIENT_BURST_MESSAGES),
        (FromWorker, WORKER_BURST_MESSAGES),
    )
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    doors: list[Door] = []
    try:
        for path, (kind, burst_messages) in zip(paths, kinds, strict=True):
            try:
                doors.append(LocalDoor(context, path, kind, burst_messages=burst_messages))
            except (zmq.ZMQError, OSError) as error:
                raise DaemonError(f"{path} cannot be bound: {error}") from error
        requests, control, workers = doors
        yield requests, control, workers
    finally:
        for door in doors:
            door.close()
        context.term()
