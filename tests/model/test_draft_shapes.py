"""Drafts of the later shapes, loaded with the target they are for, change no text."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file  # pyright: ignore[reportUnknownVariableType]

from dflashd.protocol.messages import LoadBody, Sampling
from dflashd.worker.checkpoints.draft_config import draft_config
from dflashd.worker.engine.generation import Generation
from dflashd.worker.engine.loader import load_model

from ..tiny import MASK_TOKEN_ID, VOCAB_TOKENS
from ..unit.reference_draft import random_weights
from .block_run import body, finish, plain_tokens
from .families import HYBRIDS, SHAPE, make_member

DFLASH: dict[str, Any] = {
    "block_size": 4,
    "mask_token_id": MASK_TOKEN_ID,
    "target_layer_ids": [1, 0],
    "conv_group_size": 8,
    "conv_kernel_size": 2,
    "selector_rank": 6,
    "selector_top_k": 5,
    "output_multiplier": 0.196,
    "final_logit_softcapping": 20.0,
    "input_embedding_scale": 1.0,
}
NETWORK: dict[str, Any] = {
    "hidden_size": SHAPE.hidden,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention"] * 2,
    "sliding_window": 16,
    "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
    "is_causal": False,
}
VERSION_2 = NETWORK | {
    "architectures": ["DFlash2DraftModel"],
    "vocab_size": VOCAB_TOKENS,
    "num_target_layers": SHAPE.layers,
    "dflash_config": DFLASH,
}
ASSISTANT = NETWORK | DFLASH | {"architectures": ["MuseGlimmerAssistantModel"]}
ASSISTANTS_NAMES = {"fc.": "encoder.fc.", "hidden_norm.": "encoder.output_norm_enc."}
PROMPT = [77, 3, 21, 40, 5, 99, 12, 7, 30, 61]


def make_draft(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    shape = replace(draft_config(config, "here"), vocab_size=VOCAB_TOKENS)
    arrays = {name: a.astype(np.float32) for name, a in random_weights(shape, 1).items()}
    if config is ASSISTANT:
        for ours, theirs in ASSISTANTS_NAMES.items():
            arrays[f"{theirs}weight"] = arrays.pop(f"{ours}weight")
    save_file(arrays, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("config", [VERSION_2, ASSISTANT], ids=["version 2", "assistant"])
@pytest.mark.parametrize("family", ["muse_glimmer", "qwen3_5"])
def test_drafts_of_every_shape_change_no_text(
    family: str, config: dict[str, Any], tmp_path: Path
) -> None:
    """Greedy text is the target's own; sampled requests run, and repeat with their seed."""
    layers = HYBRIDS[family].extra.get("num_hidden_layers", SHAPE.layers)
    deep = replace_layers(config, layers)
    load_body = LoadBody(
        target=str(make_member(tmp_path / "target", HYBRIDS[family])),
        draft=str(make_draft(tmp_path / "draft", deep)),
    )
    model = load_model("m", load_body, lambda *_: None)
    assert model.engine == "dflash"
    assert model.block_tokens == 4
    generation = Generation(model, body(PROMPT, 60))
    assert finish(generation) == plain_tokens(model, PROMPT, 60)[len(PROMPT) :]
    assert generation.statistics().engine == "dflash"
    sampling = Sampling(temperature=0.8, top_p=0.9, seed=5)
    once, again = (Generation(model, body(PROMPT, 40, sampling=sampling)) for _ in range(2))
    assert finish(once) == finish(again)
    model.close()


def replace_layers(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """The same draft for a deeper target, where it tells the depth."""
    return config | {"num_target_layers": layers} if "num_target_layers" in config else config
