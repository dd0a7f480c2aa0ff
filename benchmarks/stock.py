"""A process that decodes with mlx-lm alone, once for each line on stdin; says tokens per second.

``python -m benchmarks.stock [host]``: with ``host``, a host in the same process has hooked a model
of the same classes, has answered with it and is idle.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, final

from dflashd.worker import Host
from dflashd.worker.machine import blas, jit

TOKENS = 32


def main() -> None:
    """Serve until stdin ends."""
    blas.prepare()
    jit.prepare(private=True)
    import mlx.core as mx
    from mlx_lm.generate import generate_step
    from mlx_lm.utils import dequantize_model, load_model

    from dflashd.worker.checkpoints.sources import resolve

    from .workload import PAIR, SILENCE

    host = Host() if "host" in sys.argv[1:] else None
    if host is not None:
        host.load("m", PAIR.target, PAIR.draft)
        host.generate("m", "The sky", max_tokens=16).wait()
    stock: Any = load_model(resolve(PAIR.target, SILENCE, "target"))[0]
    # What a CPU is quick at; the same for both processes.
    stock.set_dtype(mx.float32)
    dequantize_model(stock)
    mx.eval(stock.parameters())
    prompt = mx.array([1000 + n for n in range(32)])
    for _ in sys.stdin:
        moments = [time.perf_counter() for _ in generate_step(prompt, stock, max_tokens=TOKENS + 1)]
        print(TOKENS / (moments[-1] - moments[0]), flush=True)
    if host is not None:
        host.shutdown()


@final
class Stock:
    """The process from outside."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child

    def tokens_per_s(self) -> float:
        """One run."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write("run\n")
        self._child.stdin.flush()
        return float(self._child.stdout.readline())


@contextmanager
def stock(*arguments: str) -> Generator[Stock]:
    """Such a process, while the block lasts."""
    command = [sys.executable, "-m", "benchmarks.stock", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
        yield Stock(child)


if __name__ == "__main__":
    main()
