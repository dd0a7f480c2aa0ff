"""Clients that ask at random, and count how each request ended."""

from __future__ import annotations

import random
import threading
from collections import Counter

from dflashd.protocol import Client, DflashError
from dflashd.protocol.sync import Generation

from ..process.daemon_process import DaemonProcess
from .fleet import SOUND

OPERATIONS_A_CONNECTION = 25


class Traffic(threading.Thread):
    """One client after the other, until told to stop. ``ends`` counts, ``problems`` tells."""

    def __init__(self, daemon: DaemonProcess, models: list[str], seed: int) -> None:
        super().__init__(name=f"traffic-{seed}", daemon=True)
        self._daemon = daemon
        self._models = models
        self._chance = random.Random(seed)
        self._over = threading.Event()
        self.asked = 0
        self.ends: Counter[str] = Counter()
        self.commands: Counter[str] = Counter()
        self.problems: list[str] = []

    def stop(self) -> None:
        """Finish what is begun, begin nothing more."""
        self._over.set()

    def run(self) -> None:
        """Ask."""
        try:
            while not self._over.is_set():
                with self._daemon.client() as client:
                    for _ in range(OPERATIONS_A_CONNECTION):
                        if not self._over.is_set():
                            self._operate(client)
        except Exception as error:  # noqa: BLE001 - a thread's border; it becomes a finding
            self.problems.append(f"{self.name}: {type(error).__name__}: {error}")

    def _operate(self, client: Client) -> None:
        model = self._chance.choice(self._models)
        if self._chance.random() < 0.15:
            self._command(client, model)
            return
        deadline_s = self._chance.choice((None, None, None, 0.05, 1.0, 5.0))
        self.asked += 1
        generation = client.generate(model, "the quick brown", deadline_s=deadline_s, max_tokens=16)
        self.ends[self._live_through(generation, model)] += 1

    def _live_through(self, generation: Generation, model: str) -> str:
        """Read, cancel or drop a request; how it ended."""
        fate = self._chance.choice(("read", "read", "read", "cancel", "drop"))
        try:
            if fate == "read":
                tokens = generation.wait().tokens
                self._check(model, tokens)
                return "done"
            chunks = iter(generation)
            for _ in range(self._chance.randrange(20)):
                if next(chunks, None) is None:
                    return "done"
            if fate == "drop":
                return "dropped"
            generation.cancel()
            generation.wait()
        except DflashError as error:
            return str(error.code)
        return "done"

    def _check(self, model: str, tokens: tuple[int, ...]) -> None:
        known = SOUND.get(model)
        if known is not None and tokens != tuple(range(int(known["chunks"]))):
            self.problems.append(f"{model} answered {tokens}")

    def _command(self, client: Client, model: str) -> None:
        name = self._chance.choice(("spawn", "retire", "retire now", "status", "cache"))
        try:
            match name:
                case "spawn":
                    client.spawn(model)
                case "retire" | "retire now":
                    client.retire(model, now=name == "retire now")
                case "cache":
                    client.cache(model)
                case _:
                    client.status()
        except DflashError as error:
            name = f"{name}: {error.code}"
        self.commands[name] += 1
