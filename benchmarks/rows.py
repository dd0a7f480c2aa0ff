"""The cost of a verify pass by row count, beside a plain step and a draft."""

from __future__ import annotations

from dflashd.worker.engine.loader import load_model

from .costs import Bench
from .workload import PAIR, SILENCE

ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32)


def figures() -> dict[str, float]:
    """``verify_ms_N`` for N rows; ``verify_N_over_step_ratio`` tells what speculation must win."""
    bench = Bench(load_model("bench", PAIR, SILENCE))
    step = bench.step_ms()
    result = {"step_ms": step, "draft_ms": bench.draft_ms()}
    verify = {rows: bench.verify_ms(rows) for rows in ROWS}
    result |= {f"verify_ms_{rows}": ms for rows, ms in verify.items()}
    result |= {f"verify_{rows}_over_step_ratio": ms / step for rows, ms in verify.items()}
    return result
