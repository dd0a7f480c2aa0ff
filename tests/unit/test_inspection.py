"""Facts from files alone: where they are, what they say, and that no file can break it."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dflashd.protocol.messages import CacheSettings, LoadBody
from dflashd.supervisor.core.facts import ModelFacts
from dflashd.supervisor.inspection import facts as facts_module, inspect
from dflashd.supervisor.inspection.places import folder_of
from dflashd.supervisor.inspection.states import target_states
from dflashd.worker.checkpoints import weights as worker_weights
from dflashd.worker.checkpoints.embedded import DRAFTS, TARGETS, draft_folder
from dflashd.worker.checkpoints.weight_files import weight_files

from ..tiny import make_draft, make_target

POOL_BYTES = 2**33


def write_weights(folder: Path, tensors: dict[str, tuple[str, list[int], int]]) -> None:
    """A weight file with the true header and no data: dtype, shape and bytes by name."""
    header: dict[str, Any] = {"__metadata__": {"format": "mlx", "dtype": "x"}}
    at = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)


def facts_of(target: Path, *, on_cpu: bool = True, **fields: Any) -> ModelFacts:
    body = LoadBody(target=str(target), **fields)
    return inspect(body, concurrency=8, pool_bytes=POOL_BYTES, on_cpu=on_cpu)


def total(found: ModelFacts) -> int:
    return sum(part.size_bytes for part in found.weights)


QUANTISED = {
    "model.layers.0.q.weight": ("U32", [64, 8], 64 * 8 * 4),  # 64 values of 4 bits a row
    "model.layers.0.q.scales": ("BF16", [64, 2], 64 * 2 * 2),
    "model.layers.0.q.biases": ("BF16", [64, 2], 64 * 2 * 2),
    "model.embed_tokens.weight": ("U32", [100, 16], 100 * 16 * 4),  # 64 values of 8 bits a row
    "model.embed_tokens.scales": ("BF16", [100, 2], 100 * 2 * 2),
    "model.norm.weight": ("BF16", [64], 128),
    "lm_head.weight": ("BF16", [100, 64], 100 * 64 * 2),
    "vision_tower.blocks.0.weight": ("BF16", [500, 64], 500 * 64 * 2),
}
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1000,
    "tie_word_embeddings": True,
    "quantization": {"group_size": 32, "bits": 4, "model.embed_tokens": {"bits": 8}},
}


@pytest.fixture
def quantised(tmp_path: Path) -> Path:
    write_weights(tmp_path / "q", QUANTISED)
    (tmp_path / "q" / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path / "q"


def test_quantised_weights_count_dense_where_the_worker_dequantises(quantised: Path) -> None:
    """On a CPU a 4-bit model counts in float32, each layer by its own bits; elsewhere as stored."""
    dense = 64 * 64 + 100 * 64 + 64
    cast = facts_of(quantised)
    assert (total(cast), cast.dtype, cast.cast_bytes) == (4 * dense, "float32", 4 * 6400)
    assert total(facts_of(quantised, dtype="bfloat16")) == 2 * dense
    kept = facts_of(quantised, on_cpu=False)
    loaded = ("model.layers", "model.embed", "model.norm")
    stored = sum(s for n, (_, _, s) in QUANTISED.items() if n.startswith(loaded))
    assert (total(kept), kept.dtype, kept.cast_bytes) == (stored, "keep", 0)
    assert kept.requests_bytes * 2 == cast.requests_bytes, "keys and values are bfloat16 there"


def test_float32_that_the_pool_cannot_hold_is_not_reckoned_with(quantised: Path) -> None:
    """Where the float32 copy has no room the facts say so, so that the worker can be told."""
    body = LoadBody(target=str(quantised))
    dense_bytes = 4 * (64 * 64 + 100 * 64 + 64)
    found = inspect(body, concurrency=1, pool_bytes=dense_bytes, on_cpu=True)
    assert found.dtype == "keep"


def test_what_a_request_may_need_is_reckoned_with_the_declared_context(quantised: Path) -> None:
    """One whole context, a chunk and an answer for each other; the cache up to one context."""
    token = 2 * 2 * 16 * 4
    found = facts_of(quantised, context_tokens=1000, prefill_chunk_tokens=56, max_tokens=200)
    assert found.requests_bytes == token * (1024 + 7 * 256)
    assert found.cache_bytes == token * 1024
    small = facts_of(quantised, context_tokens=1000, cache=CacheSettings(ram_bytes=5000))
    assert small.cache_bytes == 5000
    assert facts_of(quantised, cache=CacheSettings(enabled=False)).cache_bytes == 0


def test_an_undeclared_context_counts_as_a_common_one(tmp_path: Path) -> None:
    """A model made for a million tokens does not reserve them unless its section says so."""
    write_weights(tmp_path, {"a.weight": ("F32", [1], 4)})
    config = {**CONFIG, "max_position_embeddings": 2**20}
    (tmp_path / "config.json").write_text(json.dumps(config))
    least, most = facts_of(tmp_path), facts_of(tmp_path, context_tokens=2**20)
    assert most.requests_bytes > 50 * least.requests_bytes


def test_a_draft_counts_without_the_targets_own_tensors(tmp_path: Path) -> None:
    """Copies of embedding and head in a draft are not loaded; rows it proposes from are held."""
    target = make_target(tmp_path / "t")
    draft = make_draft(tmp_path / "d")
    plain = facts_of(target, draft=str(draft))
    copies = QUANTISED["lm_head.weight"]
    tensors = {"embed_tokens.weight": copies, "lm_head.weight": copies}
    write_weights(tmp_path / "copies", tensors)
    os.rename(tmp_path / "copies/model.safetensors", draft / "copies.safetensors")
    assert facts_of(target, draft=str(draft)).weights == plain.weights
    (draft / "frequent_tokens.json").write_text("[1, 2, 3]")
    assert total(facts_of(target, draft=str(draft))) == total(plain) + 3 * 64 * 4
    (draft / "frequent_tokens.json").write_text("[[1], 2, 3]")
    assert "frequent_tokens.json" in facts_of(target, draft=str(draft)).unknown
    (draft / "frequent_tokens.json").unlink()
    assert facts_of(target, draft=str(draft), block_tokens=1).weights == plain.weights[:1]


def test_a_second_copy_of_the_weights_counts_for_nobody(quantised: Path) -> None:
    """Weights that come once more in their makers' own format are not read, digested or counted."""
    found, files = facts_of(quantised), weight_files(quantised)
    shutil.copy(quantised / "model.safetensors", quantised / "consolidated.safetensors")
    assert facts_of(quantised) == found
    assert weight_files(quantised) == files


def test_two_models_on_one_target_name_its_weights_alike(tmp_path: Path) -> None:
    """A link to a folder is that folder; another type to compute in is other weights."""
    target = make_target(tmp_path / "t")
    (tmp_path / "link").symlink_to(target)
    one, two = facts_of(target), facts_of(tmp_path / "link")
    assert one.weights == two.weights
    assert facts_of(target, dtype="float16").weights[0].key != one.weights[0].key


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda f: (f / "config.json").unlink(), "not on this disk"),
        (lambda f: (f / "config.json").write_text("[]"), "not what it must be"),
        (lambda f: (f / "config.json").write_text("[" * 100_000), ""),
        (lambda f: (f / "config.json").write_bytes(b"\xff"), "not what it must be"),
        (lambda f: (f / "model.safetensors").unlink(), "no *.safetensors file"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), "no safetensors file"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 99), "no safetensors file"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\x09" + bytes(20)), "damaged header"),
        (
            lambda f: (f / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "model-2.safetensors"}}'
            ),
            "lacks model-2.safetensors",
        ),
        (lambda f: (f / "model.safetensors.index.json").write_text("[]"), "is no index"),
    ],
)
def test_bad_files_are_unknown_facts(quantised: Path, spoil: Any, said: str) -> None:
    """What cannot be read is said in one sentence and raises nothing: the worker will judge."""
    spoil(quantised)
    found = facts_of(quantised)
    assert found.unknown
    assert said in found.unknown
    assert "\n" not in found.unknown
    assert found.weights == ()


@pytest.mark.parametrize("junk", [None, "x", -1, 1.5, True, [], {}])
def test_fields_of_any_kind_are_survived(quantised: Path, junk: object) -> None:
    """A configuration's fields may hold anything; what is no count counts as absent."""
    for key in (*CONFIG, "layer_types", "text_config", "kv_lora_rank", "sliding_window"):
        (quantised / "config.json").write_text(json.dumps({**CONFIG, key: junk}))
        facts_of(quantised)


def test_layers_that_forget_count_up_to_their_window() -> None:
    """Sliding layers grow to window and pass, recurrent ones not at all, shared ones are none."""
    config = {
        **CONFIG,
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
    }
    row = 2 * 2 * 16
    states = target_states(config)
    assert states.elements(100_000, 256) == row * (100_096 + 5 * 768)
    recurrent = {
        "num_hidden_layers": 4,
        "linear_num_value_heads": 2,
        "linear_num_key_heads": 1,
        "linear_key_head_dim": 3,
        "linear_value_head_dim": 5,
        "linear_conv_kernel_dim": 4,
    }
    states = target_states({**CONFIG, **recurrent})
    assert (states.per_token, states.fixed) == (row, 3 * (3 * (2 * 3 + 10) + 10 * 3))


def test_embedded_names_are_where_the_worker_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each embedded draft is found in the package, each target where it would be made."""
    for name in DRAFTS:
        assert folder_of(name, "draft") == draft_folder(name)
    monkeypatch.setenv("DFLASHD_CACHE_DIR", str(tmp_path))
    for name in TARGETS:
        assert folder_of(name, "target") is None
        place = make_target(tmp_path / "models" / name)
        assert folder_of(name, "target") == place


def test_repositories_are_found_in_the_hubs_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``owner/name`` is what the hub's main points at; a revision is a name or a hash."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    kept = tmp_path / "models--own--name"
    snapshot = make_target(kept / "snapshots" / "abc")
    assert folder_of("own/name", "target") is None
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("abc")
    assert folder_of("own/name", "target") == snapshot
    assert folder_of("own/name@abc", "target") == snapshot
    assert folder_of("own/name@other", "target") is None


def test_what_two_sides_must_know_is_equal() -> None:
    """The worker's rule for float32, written down on both sides of the border, is one rule."""
    assert facts_module.FLOAT32_HEADROOM == worker_weights.FLOAT32_HEADROOM
    assert set(facts_module.WIDTHS) == set(worker_weights.DTYPES)


def test_inspection_needs_no_model_library() -> None:
    """Facts of the embedded pair are had without importing mlx or the worker."""
    code = (
        "import sys; from dflashd.protocol.messages import LoadBody;"
        "from dflashd.supervisor.inspection import inspect;"
        "inspect(LoadBody(target='smollm2-135m', draft='smollm2-135m-dflash'),"
        " concurrency=1, pool_bytes=1);"
        "print([m for m in sys.modules if m.split('.')[0] in ('mlx', 'mlx_lm', 'numpy')"
        " or m.startswith('dflashd.worker')])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
