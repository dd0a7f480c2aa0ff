"""What the demo saw, and whether it bears out what the demo claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import psutil

from dflashd.protocol.messages import DoneBody, ModelStatus, SnapshotBody, WorkerStatus

STOP_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One model's answer; ``came_s`` is when each chunk arrived, on one clock for all."""

    text: str
    came_s: tuple[float, ...]
    stats: DoneBody

    @property
    def tokens_per_s(self) -> float:
        """Speed of decoding, after the first token."""
        return 1e3 * max(0, self.stats.generated_tokens - 1) / max(self.stats.decode_ms, 1e-9)


def answered_together(answers: Sequence[Answer]) -> bool:
    """Whether their chunks came in turns: no answer was over before another had begun."""
    arrivals = sorted((at, i) for i, answer in enumerate(answers) for at in answer.came_s)
    order = [i for _, i in arrivals]
    turns = sum(a != b for a, b in pairwise(order))
    return set(order) == set(range(len(answers))) and turns > len(answers)


class Leftovers:
    """The processes and files that must be gone when the daemon has stopped."""

    def __init__(self, processes: Sequence[psutil.Process], run_dir: Path) -> None:
        self._daemon, *self._others = processes
        self._run_dir = run_dir
        self.exit_status: int | None = None
        self.processes: tuple[int, ...] = ()
        self.files: tuple[str, ...] = ()

    @classmethod
    def watch(cls, daemon_pid: int, run_dir: Path) -> Self:
        """Remember the daemon and all it has started."""
        daemon = psutil.Process(daemon_pid)
        return cls([daemon, *daemon.children(recursive=True)], run_dir)

    def wait(self) -> None:
        """Wait for the daemon's end, then look what is left: nothing may be."""
        try:
            self.exit_status = self._daemon.wait(STOP_S)
        except psutil.TimeoutExpired:
            self.exit_status = None
        everyone = [self._daemon, *self._others]
        self.processes = tuple(process.pid for process in everyone if process.is_running())
        self.files = tuple(sorted(path.name for path in self._run_dir.iterdir()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that was measured and seen in one run of the demo."""

    first: Mapping[str, Answer]
    second: Mapping[str, Answer]
    plain: Mapping[str, Answer]
    before: SnapshotBody
    after: SnapshotBody
    retired: SnapshotBody
    leftovers: Leftovers

    @property
    def ok(self) -> bool:
        """Whether every claim holds."""
        return all(self.claims().values())

    def claims(self) -> dict[str, bool]:
        """What the demo says, and whether it was so."""
        answers = [*self.first.values(), *self.second.values()]
        pids = {worker.pid for worker in self.after.workers if worker.pid is not None}
        together = [answered_together([*x.values()]) for x in (self.first, self.second)]
        return {
            "both models answered with DFlash": all(a.stats.engine == "dflash" for a in answers),
            "in two workers": len(pids) == len(self.first) == len(self.after.workers)
            and {a.stats.worker_pid for a in answers} == pids,
            "at the same time, twice": all(together),
            "and were compared with plain decoding": all(
                a.stats.engine == "plain" for a in self.plain.values()
            ),
            "neither model was unloaded in between": self._stayed_loaded(),
            "both were retired": all(worker.pid is None for worker in self.retired.workers)
            and all(model.unloads == 1 for model in self.retired.models),
            "the daemon stopped in good order": self.leftovers.exit_status == 0,
            "no process is left": not self.leftovers.processes,
            "no socket and no lock is left": not self.leftovers.files,
        }

    def verdicts(self) -> list[str]:
        """The claims, as lines for a person."""
        return [f"{'yes' if true else 'NO':>4}  {claim}" for claim, true in self.claims().items()]

    def models(self) -> list[dict[str, Any]]:
        """Per model, what ``--json`` tells."""
        return [self._model(name) for name in self.first]

    def table(self) -> list[str]:
        """Per model, what a person reads: a column each."""
        rows = [self._row(name) for name in self.first]
        labels = max(len(label) for label in rows[0])
        widths = [max(len(value) for value in row.values()) for row in rows]
        return [
            f"{label:{labels}}  "
            + "  ".join(f"{row[label]:>{width}}" for row, width in zip(rows, widths, strict=True))
            for label in rows[0]
        ]

    def _model(self, name: str) -> dict[str, Any]:
        first, second, plain = self.first[name], self.second[name], self.plain[name]
        worker = _worker(self.after, name)
        return {
            "name": name,
            "engine": first.stats.engine,
            "pid": worker.pid,
            "tokens": first.stats.generated_tokens,
            "tokens_per_s": round(first.tokens_per_s, 2),
            "plain_tokens_per_s": round(plain.tokens_per_s, 2),
            "acceptance_length_tokens": round(first.stats.acceptance_length_tokens, 3),
            "ttft_s": round(first.stats.ttft_ms / 1e3, 4),
            "second_ttft_s": round(second.stats.ttft_ms / 1e3, 4),
            "second_prompt_tokens": second.stats.prompt_tokens,
            "cached_tokens": second.stats.cached_tokens,
            "memory_bytes": worker.memory_bytes,
            "answered_at_the_same_time": answered_together([*self.first.values()]),
            "same_text_as_plain": first.text == plain.text,
        }

    def _row(self, name: str) -> dict[str, str]:
        facts, stats = self._model(name), self.first[name].stats
        return {
            "": name,
            "engine": f"{stats.engine}, block of {stats.block_tokens}",
            "worker pid": str(facts["pid"]),
            "memory": f"{facts['memory_bytes'] / 1e6:.0f} MB",
            "tokens": str(facts["tokens"]),
            "tokens/s, DFlash": f"{facts['tokens_per_s']:.1f}",
            "tokens/s, plain": f"{facts['plain_tokens_per_s']:.1f}",
            "tokens per cycle": f"{facts['acceptance_length_tokens']:.2f}",
            "time to first token": f"{facts['ttft_s']:.2f} s",
            "the same, second question": f"{facts['second_ttft_s']:.2f} s",
            "its prompt tokens": str(facts["second_prompt_tokens"]),
            "of these from a cache": str(facts["cached_tokens"]),
            "text as by plain decoding": "yes" if facts["same_text_as_plain"] else "no",
        }

    def _stayed_loaded(self) -> bool:
        return all(
            (_worker(self.before, name).epoch, _worker(self.before, name).pid)
            == (_worker(self.after, name).epoch, _worker(self.after, name).pid)
            and (_model_status(self.after, name).loads, _model_status(self.after, name).unloads)
            == (1, 0)
            for name in self.first
        )


def _worker(snapshot: SnapshotBody, model: str) -> WorkerStatus:
    return next(worker for worker in snapshot.workers if model in worker.models)


def _model_status(snapshot: SnapshotBody, name: str) -> ModelStatus:
    return next(model for model in snapshot.models if model.name == name)
