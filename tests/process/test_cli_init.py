"""``dflashctl init`` on a hub cache that is made for the test, and what the daemon thinks of it."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from .test_cli_commands import CTL

SHAPE = {"hidden_size": 64, "vocab_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
TARGET = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **SHAPE}
DRAFT = {
    **SHAPE,
    "architectures": ["DFlashDraftModel"],
    "num_hidden_layers": 1,
    "num_target_layers": 4,
    "block_size": 16,
    "dflash_config": {"mask_token_id": 1, "target_layer_ids": [0, 3]},
}


def keep(home: Path, repo: str, config: dict[str, Any], *, weights: bool = True) -> None:
    """A repository as huggingface_hub keeps it."""
    kept = home / "hub" / ("models--" + repo.replace("/", "--"))
    folder = kept / "snapshots" / "0123abcd"
    folder.mkdir(parents=True)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("0123abcd")
    (folder / "config.json").write_text(json.dumps(config))
    if weights:
        entry = {"dtype": "BF16", "shape": [64], "data_offsets": [0, 128]}
        header = json.dumps({"model.norm.weight": entry}).encode()
        content = struct.pack("<Q", len(header)) + header + bytes(128)
        (folder / "model.safetensors").write_bytes(content)


def init(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it with this cache and no other."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_HOME": str(home), "DFLASHD_CACHE_DIR": str(home / "none")}
    return subprocess.run(
        [*CTL, "init", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=home,
        env=environment,
    )


def check(home: Path, file: str = "dflashd.toml") -> None:
    """The daemon's own check accepts the file."""
    done = subprocess.run(
        [*CTL, "config", "check", file], capture_output=True, text=True, cwd=home, check=False
    )
    assert done.returncode == 0, done.stderr


def test_targets_meet_their_drafts(tmp_path: Path) -> None:
    """A draft goes to the target it was made for, conversions included, with the reason beside."""
    keep(tmp_path, "Qwen/Qwen3-4B", TARGET)
    keep(tmp_path, "mlx-community/Qwen3-4B-4bit", TARGET)
    keep(tmp_path, "z-lab/Qwen3-4B-DFlash-b16", DRAFT)
    done = init(tmp_path)
    assert done.returncode == 0, done.stderr
    check(tmp_path)
    text = (tmp_path / "dflashd.toml").read_text()
    models = tomllib.loads(text)["models"]
    assert models["qwen3-4b"] == {
        "target": "Qwen/Qwen3-4B",
        "draft": "z-lab/Qwen3-4B-DFlash-b16",
    }
    assert models["qwen3-4b-4bit"]["draft"] == "z-lab/Qwen3-4B-DFlash-b16"
    assert "hidden size 64, 4 layers, 512 tokens as the draft expects, and the names agree" in text


def test_a_draft_that_only_fits_is_proposed_not_taken(tmp_path: Path) -> None:
    """Another fine-tune of the same shape gets the draft as a comment that says the risk."""
    keep(tmp_path, "Qwen/Qwen3-4B-Instruct-2507", TARGET)
    keep(tmp_path, "z-lab/Qwen3-4B-DFlash-b16", DRAFT)
    done = init(tmp_path)
    assert done.returncode == 0
    assert "1 more draft in its comments" in done.stdout
    check(tmp_path)
    text = (tmp_path / "dflashd.toml").read_text()
    assert "draft" not in tomllib.loads(text)["models"]["qwen3-4b-instruct-2507"]
    assert '# draft = "z-lab/Qwen3-4B-DFlash-b16"' in text


def test_a_draft_that_does_not_fit_waits_for_its_target(tmp_path: Path) -> None:
    """Names that agree do not help where shapes differ; the file says what the draft needs."""
    keep(tmp_path, "Qwen/Qwen3-4B", TARGET | {"hidden_size": 128})
    keep(tmp_path, "z-lab/Qwen3-4B-DFlash-b16", DRAFT)
    found = json.loads(init(tmp_path, "--json").stdout)
    (model,) = (one for one in found["models"] if one["name"] == "qwen3-4b")
    assert (model["draft"], model["other_drafts"]) == (None, [])
    left_out = {one["model"]: one["reason"] for one in found["left_out"]}
    assert "a draft for qwen3-4b" in left_out["z-lab/Qwen3-4B-DFlash-b16"]
    assert "hidden size 64" in left_out["z-lab/Qwen3-4B-DFlash-b16"]


@pytest.mark.parametrize(
    ("config", "weights", "reason"),
    [
        ({"architectures": ["BertModel"]}, True, "no text model (BertModel)"),
        (TARGET, False, "has no *.safetensors file"),
        ({"architectures": ["DSparkQwen3"]}, True, "a DSpark draft"),
    ],
)
def test_what_is_no_model_for_us_is_left_out_with_its_reason(
    tmp_path: Path, config: dict[str, Any], weights: bool, reason: str
) -> None:
    """Nothing is passed over in silence."""
    keep(tmp_path, "some/thing", config, weights=weights)
    done = init(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "left out: some/thing: " in done.stdout
    assert reason in done.stdout
    check(tmp_path)


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    """Only --force replaces a file; - prints it and writes nothing."""
    (tmp_path / "dflashd.toml").write_text("mine")
    refused = init(tmp_path)
    assert refused.returncode == 1
    assert "--force" in refused.stderr
    assert (tmp_path / "dflashd.toml").read_text() == "mine"
    printed = init(tmp_path, "-")
    assert tomllib.loads(printed.stdout)["models"]
    assert (tmp_path / "dflashd.toml").read_text() == "mine"
    assert init(tmp_path, "--force").returncode == 0
    check(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_an_empty_machine_gets_the_model_that_comes_along(tmp_path: Path) -> None:
    """Where nothing is found the file begins with the embedded pair."""
    assert init(tmp_path, "first.toml").returncode == 0
    check(tmp_path, "first.toml")
    models = tomllib.loads((tmp_path / "first.toml").read_text())["models"]
    assert models["smollm2-135m"]["draft"] == "smollm2-135m-dflash"
