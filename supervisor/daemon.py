"""The daemon from start to end: directories, lock, sockets, signals, and what it is made of."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import final

from ..protocol.paths import Endpoints
from ..protocol.version import VERSION
from . import open_files
from .config_source import ConfigSource
from .core.events import ReloadAsked, ServingBegan, ShutdownAsked
from .core.machine import Core
from .core.snapshot import Identity
from .directories import make_private, remove_sockets
from .doors.names import make_unguessable
from .gateway_process import gateway_process
from .instance_lock import InstanceLock
from .logs.keeper import LogKeeper
from .logs.log import line, log
from .logs.worker_logs import WorkerLogs
from .pool import memory_pool
from .processes.companion import Companion
from .processes.lifeline import Lifeline
from .processes.registry import ProcessRegistry
from .processes.workers import Processes
from .pulse import Pulse, say_farewell
from .service.notify import ServiceNotifier
from .sockets import Sockets, open_sockets
from .switchboard import Switchboard
from .tcp.listener import TcpListener
from .watching.lookout import Lookout

WORKER_COMMAND = (sys.executable, "-P", "-m", "dflashd.worker")
"""``-P``: what happens to lie in the working directory is not imported."""

WATCH_S = 0.5
"""Time between two looks at the configuration file; a change must outlast one of them."""


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
            with contextlib.closing(registry), open_sockets(endpoints) as sockets:
                await self._serve(sockets, endpoints.workers, registry, on_ready)

    async def _serve(
        self,
        sockets: Sockets,
        workers_url: str,
        registry: ProcessRegistry,
        on_ready: Callable[[str], None],
    ) -> None:
        limits = self._config.daemon
        logs = WorkerLogs(
            self._config.state_dir / "logs",
            worker_bytes=limits.log_bytes_per_worker,
            all_bytes=limits.log_bytes,
        )
        processes = self._processes(self._worker_command, registry, logs, workers_url)
        self._gateway = gateway_process(
            self._configs, lambda command: self._processes(command, registry, logs)
        )
        lookout = Lookout(lambda: self._configs.current.daemon, logs, on_event=self._happened)
        self._board = self._switchboard(sockets, processes, lookout, registry)
        try:
            self._attend(sockets)
            self._tcp = self._listener()
            with LogKeeper(logs):
                await self._work(registry, lookout, on_ready)
            await say_farewell(self._board)
            if self._gateway is not None:
                await self._gateway.stop()
        finally:
            processes.kill_all()
            if self._tcp is not None:
                self._tcp.stop()
            if self._gateway is not None:
                self._gateway.kill()
            if self._lifeline is not None:
                self._lifeline.release()
            self._service.close()
            for door in sockets:
                asyncio.get_running_loop().remove_reader(door.fileno())

    async def _work(
        self, registry: ProcessRegistry, lookout: Lookout, on_ready: Callable[[str], None]
    ) -> None:
        """Serve until the core has stopped."""
        watched = (self._lifeline, self._service, self._tcp, self._gateway, registry)
        looks = [each.look for each in watched if each is not None]
        async with asyncio.TaskGroup() as tasks:
            watches = [
                tasks.create_task(Pulse(self._board, looks, lookout.lag).run()),
                tasks.create_task(self._watch_config()),
            ]
            if self._tcp is not None:
                watches.append(tasks.create_task(self._tcp.guard()))
            if self._gateway is not None:
                self._gateway.start()
            on_ready(self._ready_sentence())
            self._service.ready(self._ready_sentence())
            self._board.give(ServingBegan())
            await self._stopped.wait()
            for watch in watches:
                watch.cancel()

    def _switchboard(
        self, sockets: Sockets, processes: Processes, lookout: Lookout, registry: ProcessRegistry
    ) -> Switchboard:
        return Switchboard(
            self._core(),
            sockets,
            processes,
            configs=self._configs,
            lookout=lookout,
            on_stop=self._stopped.set,
            services=lambda: tuple(each.status() for each in (self._gateway, self._tcp) if each),
            problems=lambda: tuple(filter(None, [registry.problem, self._configs.problem])),
        )

    def _core(self) -> Core:
        section = self._config.daemon
        identity = Identity(
            instance=self._instance,
            version=VERSION,
            pid=os.getpid(),
            started_at=time.monotonic(),
        )
        return Core(
            section,
            self._config.models,
            identity,
            random.random,
            pool_bytes=memory_pool(section.memory_share, section.memory_bytes).budget_bytes,
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

    def _listener(self) -> TcpListener | None:
        section = self._config.tcp
        if section is None:
            return None
        listener = TcpListener(section, self._config.keys_dir, self._board)
        listener.start()
        return listener

    def _attend(self, sockets: Sockets) -> None:
        """Be called when something arrives: a message, a signal, the parent's end."""
        loop = asyncio.get_running_loop()
        for door in sockets:
            loop.add_reader(door.fileno(), self._board.wake, door)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._board.give, ShutdownAsked())
        loop.add_signal_handler(signal.SIGHUP, self._board.give, ReloadAsked(cause="signal"))
        if self._lifeline is not None:
            self._lifeline.hold()

    async def _watch_config(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            self._configs.look(lambda: self._board.give(ReloadAsked(cause="file")))

    def _happened(self, name: str) -> None:
        self._service.happened(name)
        if name == "config_reloaded" and self._gateway is not None:
            self._gateway.revive()

    def _parent_went(self) -> None:
        log.warning(line("parent_gone"))
        # Twice: nobody is left for whom running requests should finish.
        self._board.give(ShutdownAsked())
        self._board.give(ShutdownAsked())

    def _ready_sentence(self) -> str:
        models = ", ".join(self._config.models) or "none"
        where = self._config.runtime_dir
        return f"dflashd is ready in {where} (pid {os.getpid()}, models: {models})"
