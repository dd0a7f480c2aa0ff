"""Decode speed of the whole stack, of the bare engine and of mlx-lm, on the same text."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.utils import dequantize_model, load_model as load_mlx_model

from dflashd.worker.checkpoints.sources import resolve
from dflashd.worker.engine.loader import load_model
from dflashd.worker.engine.model import Model

from .contenders import Run, daemon_contender, engine_run, mlx_lm_run
from .costs import Bench
from .workload import PAIR, PROMPTS, SILENCE


def figures() -> dict[str, float]:
    """Ratios of tokens per second; the contenders take turns on each prompt."""
    model = load_model("bench", PAIR, SILENCE)
    stock = _stock_model(model)
    bench = Bench(model)
    mlx_lm: list[Run] = []
    engine: list[Run] = []
    daemon: list[Run] = []
    cycle_costs_ms: list[float] = []
    with daemon_contender() as contender:
        for prompt in PROMPTS:
            mlx_lm.append(mlx_lm_run(model, stock, prompt))
            engine.append(engine_run(model, prompt))
            cycle_costs_ms.append(bench.verify_ms(model.block_tokens) + bench.draft_ms())
            daemon.append(contender.run(prompt))
            engine.append(engine_run(model, prompt))
            daemon.append(contender.run(prompt))
        supervisor_ms = 1e3 * contender.supervisor_cpu_s / contender.chunks
    _same_text(mlx_lm, engine, daemon)
    cycle_ms = 1e3 * sum(r.seconds for r in engine) / sum(r.cycles for r in engine)
    return {
        "mlx_lm_tokens_per_s": _rate(mlx_lm),
        "engine_tokens_per_s": _rate(engine),
        "daemon_tokens_per_s": _rate(daemon),
        "engine_over_mlx_lm_ratio": _rate(engine) / _rate(mlx_lm),
        "daemon_over_engine_ratio": _rate(daemon) / _rate(engine),
        "acceptance_length_tokens": sum(r.tokens for r in engine) / sum(r.cycles for r in engine),
        "cycle_ms": cycle_ms,
        "verify_and_draft_ms": statistics.mean(cycle_costs_ms),
        "limit_ratio": statistics.mean(cycle_costs_ms) / cycle_ms,
        "supervisor_ms_per_chunk": supervisor_ms,
    }


def _rate(runs: list[Run]) -> float:
    return sum(run.tokens for run in runs) / sum(run.seconds for run in runs)


def _same_text(mlx_lm: list[Run], engine: list[Run], daemon: list[Run]) -> None:
    for n, plain in enumerate(mlx_lm):
        texts = {
            run.text for run in (plain, *engine[2 * n : 2 * n + 2], *daemon[2 * n : 2 * n + 2])
        }
        if len(texts) != 1:
            raise RuntimeError(f"contenders disagree on prompt {n}: {sorted(texts)}")


def _stock_model(model: Model) -> Any:
    """mlx-lm's own model of the same checkpoint, in the dtype that our engine computes in."""
    folder: Path = resolve(PAIR.target, SILENCE, "target")
    stock, _ = load_mlx_model(folder, lazy=True)
    if model.dtype == "float32":
        stock.set_dtype(mx.float32)
        dequantize_model(stock)
    mx.eval(stock.parameters())
    return stock
