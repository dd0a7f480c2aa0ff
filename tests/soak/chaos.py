"""What goes wrong during a soak, at random moments: kills, hangs, pauses, strangers."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import threading
from collections import Counter

from ..process.daemon_process import DaemonProcess
from ..process.other_client import other_client

REPLACED = "wordy"
BETWEEN_S = (0.2, 1.5)


class Chaos(threading.Thread):
    """One fault after the other, until told to stop."""

    def __init__(self, daemon: DaemonProcess, models: list[str], seed: int) -> None:
        super().__init__(name="chaos", daemon=True)
        self._daemon = daemon
        self._models = models
        self._chance = random.Random(seed)
        self._over = threading.Event()
        self.faults: Counter[str] = Counter()
        self.problems: list[str] = []

    def stop(self) -> None:
        """Do no more harm."""
        self._over.set()

    def run(self) -> None:
        """Do harm."""
        harms = {
            self.kill_worker: 6,
            self.stop_worker: 1,
            self.kill_client: 3,
            self.pause_client: 1,
            self.pause_daemon: 0.5,
            self.send_garbage: 2,
            self.reload: 1,
        }
        try:
            while not self._over.wait(self._chance.uniform(*BETWEEN_S)):
                harm = self._chance.choices(list(harms), list(harms.values()))[0]
                harm()
                self.faults[harm.__name__] += 1
        except Exception as error:  # noqa: BLE001 - a thread's border; it becomes a finding
            self.problems.append(f"chaos: {type(error).__name__}: {error}")

    def kill_worker(self) -> None:
        """SIGKILL of some worker."""
        self._signal_worker(signal.SIGKILL)

    def stop_worker(self) -> None:
        """SIGSTOP of some worker: a hang."""
        self._signal_worker(signal.SIGSTOP)

    def _signal_worker(self, number: signal.Signals) -> None:
        pids = self._daemon.worker_pids()
        if pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._chance.choice(pids), number)

    def kill_client(self) -> None:
        """SIGKILL of a client while it asks."""
        with other_client(self._daemon, self._chance.choice(self._models)):
            self._over.wait(self._chance.uniform(0.1, 1.5))

    def pause_client(self) -> None:
        """SIGSTOP of a client, which goes on later and is killed then."""
        with other_client(self._daemon, self._chance.choice(self._models)) as child:
            self._over.wait(1.0)
            child.send_signal(signal.SIGSTOP)
            self._over.wait(self._chance.uniform(0.5, 3.0))
            child.send_signal(signal.SIGCONT)

    def pause_daemon(self) -> None:
        """SIGSTOP of the daemon for up to two seconds."""
        self._daemon.signal(signal.SIGSTOP)
        try:
            self._over.wait(self._chance.uniform(0.1, 2.0))
        finally:
            self._daemon.signal(signal.SIGCONT)

    def reload(self) -> None:
        """Another configuration: one model is replaced, the others are kept."""
        self._daemon.sections[REPLACED] = f"max_tokens = {self._chance.randrange(1, 1000)}"
        self._daemon.write_config(self._models)
        with self._daemon.client() as client:
            client.reload()

    def send_garbage(self) -> None:
        """A connection that speaks another language, and goes."""
        name = self._chance.choice(("requests", "control", "workers"))
        with socket.socket(socket.AF_UNIX) as raw, contextlib.suppress(OSError):
            raw.connect(str(self._daemon.runtime_dir / f"{name}.sock"))
            raw.sendall(self._chance.randbytes(300))
