"""Two models in one worker against two workers: memory and speed, in real processes."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from msgspec import structs

from dflashd.protocol import Client
from dflashd.protocol.messages import LoadBody

from .daemon import running_daemon
from .relatives import sibling, stranger
from .stock import stock
from .workload import PAIR, PROMPTS, TOKENS

Models = dict[str, LoadBody]

ROUNDS = 3
STOCK_ROUNDS = 7
MIB = 2**20


def figures() -> dict[str, float]:
    """Ratios for two drafts on one target; with a suffix, for two targets."""
    with tempfile.TemporaryDirectory(prefix="dfd", dir="/tmp") as name:
        folder = Path(name)
        other_draft = structs.replace(PAIR, draft="smollm2-135m-dflash-1l")
        family = structs.replace(PAIR, target=str(sibling(folder / "sibling")))
        cases: dict[str, LoadBody] = {
            "": other_draft,
            "_same_family": family,
            "_different_families": LoadBody(target=str(stranger(folder / "stranger"))),
        }
        result: dict[str, float] = {}
        for number, (suffix, other) in enumerate(cases.items()):
            found = compare(folder / str(number), {"a": PAIR, "b": other})
            print(f"  {suffix or '_same_target'}: {found}", file=sys.stderr, flush=True)
            for key, value in found.items():
                stem, _, unit = key.rpartition("_")
                result[f"{stem}{suffix}_{unit}"] = value
    return result | {"unhooked_over_stock_speed_ratio": unhooked_over_stock()}


def compare(folder: Path, models: Models) -> dict[str, float]:
    """One worker against two, which run side by side and take turns."""
    with (
        running_daemon(folder / "g", models, group="g") as grouped,
        running_daemon(folder / "s", models) as separate,
    ):
        rates: dict[str, list[float]] = {"grouped": [], "separate": []}
        for client in (grouped, separate):
            throughput(client, models, PROMPTS[0])
        for n in range(ROUNDS):
            turns = [("grouped", grouped), ("separate", separate)]
            for name, client in turns if n % 2 else turns[::-1]:
                rates[name].append(throughput(client, models, PROMPTS[n % len(PROMPTS)]))
        together, apart = memory_bytes(grouped), memory_bytes(separate)
        assert len(together) == 1, together
        assert len(apart) == len(models), apart
    alone = apart["a"]
    return {
        "single_memory_mib": alone / MIB,
        "grouped_memory_mib": sum(together.values()) / MIB,
        "separate_memory_mib": sum(apart.values()) / MIB,
        "grouped_over_single_memory_ratio": sum(together.values()) / alone,
        "grouped_over_separate_memory_ratio": sum(together.values()) / sum(apart.values()),
        "grouped_over_separate_throughput_ratio": statistics.harmonic_mean(rates["grouped"])
        / statistics.harmonic_mean(rates["separate"]),
    }


def throughput(client: Client, models: Models, prompt: str) -> float:
    """Tokens per second of all models, asked at the same time."""
    messages = [{"role": "user", "content": prompt}]

    def ask(model: str) -> int:
        asked = client.generate(model, messages=messages, max_tokens=TOKENS, ignore_eos=True)
        return len(asked.wait().tokens)

    with ThreadPoolExecutor(len(models)) as pool:
        started = time.perf_counter()
        tokens = sum(pool.map(ask, models))
        return tokens / (time.perf_counter() - started)


def memory_bytes(client: Client) -> dict[str, int]:
    """What each worker takes, by its name."""
    return {
        worker.name: process_bytes(worker.pid)
        for worker in client.status().workers
        if worker.pid is not None
    }


def process_bytes(pid: int) -> int:
    """What is resident; what several processes map is divided among them, if the system tells."""
    process = psutil.Process(pid)
    return getattr(process.memory_full_info(), "pss", None) or process.memory_info().rss


def unhooked_over_stock() -> float:
    """Speed of a stock mlx-lm model beside a host that hooks its classes, over one without us."""
    with stock() as without, stock("host") as beside:
        runs = [(without.tokens_per_s(), beside.tokens_per_s()) for _ in range(STOCK_ROUNDS + 1)]
    alone, hosted = zip(*runs[1:], strict=True)  # the first one warms up
    return statistics.median(hosted) / statistics.median(alone)
