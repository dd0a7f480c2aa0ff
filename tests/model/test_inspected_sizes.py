"""What files promise is what a worker then holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflashd.protocol import Daemon
from dflashd.protocol.messages import LoadBody
from dflashd.supervisor.core.facts import PROCESS_BYTES, ModelFacts
from dflashd.supervisor.inspection import inspect
from dflashd.supervisor.inspection.states import target_states
from dflashd.worker.engine.loader import load_model

from ..process.daemon_process import wait_for
from ..tiny import make_draft, make_target
from .families import HYBRIDS, MEMBERS, STOCK, VARIANTS, Family, make_member

pytestmark = pytest.mark.slow

TOKENS = 700
PASS_TOKENS = 64
WITH_STATES_OF_THEIR_OWN = {"mamba"}
"""Recurrent models without a draft: counted as attention, which is more."""


def facts_of(body: LoadBody) -> ModelFacts:
    return inspect(body, concurrency=8, pool_bytes=2**40)


@pytest.mark.parametrize("name", [*MEMBERS, *VARIANTS, *HYBRIDS, *STOCK])
def test_every_family_takes_what_its_files_say(name: str, tmp_path: Path) -> None:
    """Weights to the byte in float32 and as stored; caches as they grow, within their steps."""
    family: Family = (MEMBERS | VARIANTS | HYBRIDS | STOCK)[name]
    folder = make_member(tmp_path, family)
    for dtype in ("auto", "keep"):
        body = LoadBody(target=str(folder), dtype=dtype)
        found = facts_of(body)
        assert not found.unknown
        model = load_model(name, body, lambda *_: None)
        assert sum(part.size_bytes for part in found.weights) == model.memory_bytes
    if name in WITH_STATES_OF_THEIR_OWN:
        return
    caches: list[Any] = model.target.make_caches()
    for start in range(0, TOKENS, PASS_TOKENS):
        rows = mx.array([[5] * min(PASS_TOKENS, TOKENS - start)])
        mx.eval(model.target._model(rows, cache=caches))  # pyright: ignore[reportAttributeAccessIssue]
    held = sum(cache.nbytes for cache in caches)
    counted = 4 * target_states(family.config).elements(TOKENS, PASS_TOKENS)
    assert held <= counted <= 1.25 * held


def test_a_tiny_pair_takes_what_its_files_say(tmp_path: Path) -> None:
    """Target and draft, in float32 and in halves, to the byte."""
    target, draft = make_target(tmp_path / "t"), make_draft(tmp_path / "d")
    for dtype in ("auto", "bfloat16"):
        body = LoadBody(target=str(target), draft=str(draft), dtype=dtype)
        model = load_model("tiny", body, lambda *_: None)
        assert sum(part.size_bytes for part in facts_of(body).weights) == model.memory_bytes
        model.close()


def test_a_real_worker_stays_within_its_reservation(short_dir: Path, smollm2_folder: Path) -> None:
    """The embedded pair's worker holds its weights as estimated, and all in all no more."""
    body = LoadBody(target="smollm2-135m", draft="smollm2-135m-dflash", prefill_chunk_tokens=256)
    found = facts_of(body)
    weights = sum(part.size_bytes for part in found.weights)
    config = short_dir / "config.toml"
    config.write_text(
        f'[daemon]\nruntime_dir = "{short_dir / "run"}"\nstate_dir = "{short_dir / "state"}"\n'
        f'[models.pair]\ntarget = "{body.target}"\ndraft = "{body.draft}"\n'
        f"prefill_chunk_tokens = {body.prefill_chunk_tokens}\n"
    )
    daemon = Daemon(config, runtime_dir=short_dir / "run", log=short_dir / "daemon.log")
    with daemon, daemon.client() as client:
        client.spawn("pair")
        loaded = client.status().models[0].loaded
        assert loaded is not None
        assert loaded.memory_bytes == weights

        def seen(above: int) -> int:
            held = client.status().workers[0].memory_bytes
            return held if held > above else 0

        held = wait_for("a measurement of the whole process", lambda: seen(weights))
        assert 0.9 * held < PROCESS_BYTES + weights + found.cast_bytes < 1.5 * held
        client.generate("pair", "Count to ten. " * 75, max_tokens=16).wait()
        after = wait_for("a measurement with a filled cache", lambda: seen(held))
        assert after < PROCESS_BYTES + weights + found.own_bytes
