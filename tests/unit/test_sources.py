from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.worker.checkpoints.sources import resolve
from dflashd.worker.checkpoints.weight_files import has_all_weights
from dflashd.worker.errand import Errand

from .scripted_hub import COMMIT, REPOSITORY, scripted_hub

FILES = {
    "config.json": b"{}",
    "model.safetensors": bytes(300_000),
    "consolidated.safetensors": bytes(300_000),
    "modeling_tiny.py": b"raise SystemExit",
    "README.md": b"# Tiny",
}

RESOLVE = """
import json, sys
from dflashd.protocol.errors import DflashError
from dflashd.worker.checkpoints.sources import resolve
from dflashd.worker.errand import Errand
told = []
try:
    folder = resolve(sys.argv[1], Errand(lambda *a: told.append(a)), "target")
    files = sorted(path.name for path in folder.iterdir())
    print(json.dumps({"files": files, "told": told}))
except DflashError as error:
    print(json.dumps({"code": error.code, "message": error.message}))
"""


def resolve_with_hub(spec: str, home: Path, endpoint: str) -> dict[str, Any]:
    """What a fresh process makes of ``spec`` with this hub; the client reads it at import."""
    done = subprocess.run(
        [sys.executable, "-c", RESOLVE, spec],
        env={**os.environ, "HF_HOME": str(home), "HF_ENDPOINT": endpoint},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout)


quiet = Errand(lambda *_: None)
"""Nobody watches."""


def test_a_local_folder_is_itself(tmp_path: Path):
    """A path is taken as it is."""
    (tmp_path / "config.json").write_text("{}")
    assert resolve(str(tmp_path), quiet, "target") == tmp_path.resolve()


def test_a_bare_name_is_never_a_folder_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What a name means does not depend on where the daemon was started."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DflashError, match=r"nor a local folder \(/path, \./path, ~/path\)"):
        resolve("mine", quiet, "target")
    assert resolve("./mine", quiet, "target") == (tmp_path / "mine").resolve()


def test_an_embedded_draft_needs_no_download():
    """The drafts come with the package, whole."""
    for name in ("smollm2-135m-dflash", "smollm2-135m-dflash-1l"):
        folder = resolve(name, quiet, "draft")
        assert {path.name for path in folder.iterdir()} >= {"config.json", "model.safetensors"}


def test_an_embedded_target_is_its_folder_in_the_cache(smollm2_folder: Path):
    """The embedded name stands for the folder that pull made."""
    assert resolve("smollm2-135m", quiet, "target") == smollm2_folder


@pytest.mark.parametrize(
    ("spec", "kind", "code", "sentence"),
    [
        ("smollm2-135m", "draft", ErrorCode.bad_request, "is an embedded target; embedded drafts:"),
        ("smollm2-135m-dflash", "target", ErrorCode.bad_request, "it is an embedded draft"),
        (
            "/nowhere/model",
            "target",
            ErrorCode.not_found,
            "/nowhere/model: correct the target's path",
        ),
        ("./nowhere", "draft", ErrorCode.not_found, "./nowhere: correct the draft's path"),
        ("smollm9", "target", ErrorCode.not_found, r"neither an embedded name \(smollm2-135m\)"),
        ("a/b/c", "target", ErrorCode.not_found, "nor a hub repository"),
        ("bad name/..", "target", ErrorCode.bad_request, "is no repository name"),
    ],
)
def test_a_wrong_name_gets_a_sentence(spec: str, kind: Any, code: ErrorCode, sentence: str):
    """What cannot be resolved says what it is, and what would do."""
    with pytest.raises(DflashError, match=sentence) as caught:
        resolve(spec, quiet, kind)
    assert caught.value.code is code


def test_a_folder_without_a_model_is_refused(tmp_path: Path):
    """A folder without config.json is no model."""
    with pytest.raises(DflashError, match=r"is no model \(no config\.json\)"):
        resolve(str(tmp_path), quiet, "target")


def test_a_repository_is_fetched_with_progress_and_then_used_offline(tmp_path: Path):
    """The hub's files arrive with progress in bytes, without the model's own code and without a
    second copy of its weights; then no hub.
    """
    with scripted_hub(FILES) as endpoint:
        fetched = resolve_with_hub(REPOSITORY, tmp_path, endpoint)
    assert fetched["files"] == ["config.json", "model.safetensors"]
    total = sum(len(FILES[name]) for name in fetched["files"])
    assert fetched["told"][0] == ["download", 0, 0, "bytes"]
    assert fetched["told"][-1] == ["download", total, total, "bytes"]
    again = resolve_with_hub(REPOSITORY, tmp_path, "http://127.0.0.1:9")
    assert again == {"files": fetched["files"], "told": []}


def test_what_another_program_left_is_completed(tmp_path: Path):
    """A configuration that some program fetched for itself is no model: the rest is fetched, and
    without a network the failure says so.
    """
    kept = tmp_path / "hub" / f"models--{REPOSITORY.replace('/', '--')}"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text(COMMIT)
    (kept / "snapshots" / COMMIT).mkdir(parents=True)
    (kept / "snapshots" / COMMIT / "config.json").write_bytes(FILES["config.json"])
    failed = resolve_with_hub(REPOSITORY, tmp_path, "http://127.0.0.1:9")
    assert "only some of it is on this machine and the hub cannot be reached" in failed["message"]
    with scripted_hub(FILES) as endpoint:
        fetched = resolve_with_hub(REPOSITORY, tmp_path, endpoint)
    assert fetched["files"] == ["config.json", "model.safetensors"]


def test_an_index_that_is_wrong_keeps_nobody_from_the_weights(tmp_path: Path):
    """Some indices name files of another conversion: what the hub has is then all there is."""
    index = json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors"}}).encode()
    files = {**FILES, "model.safetensors.index.json": index}
    with scripted_hub(files) as endpoint:
        found = resolve_with_hub(REPOSITORY, tmp_path, endpoint)
        assert "model.safetensors" in found["files"]
        assert resolve_with_hub(REPOSITORY, tmp_path, endpoint)["files"] == found["files"]
    assert resolve_with_hub(REPOSITORY, tmp_path, "http://127.0.0.1:9")["files"] == found["files"]


def test_a_model_of_which_a_part_is_missing_is_not_whole(tmp_path: Path):
    """All files that the index names have to be there; one that tells nothing does not count."""
    index = tmp_path / "model.safetensors.index.json"
    assert not has_all_weights(tmp_path)
    (tmp_path / "model-1.safetensors").touch()
    assert has_all_weights(tmp_path)
    parts = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    index.write_text(json.dumps({"weight_map": parts}))
    assert not has_all_weights(tmp_path)
    (tmp_path / "model-2.safetensors").touch()
    assert has_all_weights(tmp_path)
    index.write_text("[]")
    assert has_all_weights(tmp_path)


def test_what_the_hub_does_not_have_gets_a_sentence(tmp_path: Path):
    """An unknown repository and an unknown revision are told apart."""
    with scripted_hub(FILES) as endpoint:
        repository = resolve_with_hub("owner/other", tmp_path, endpoint)
        revision = resolve_with_hub(f"{REPOSITORY}@v9", tmp_path, endpoint)
    assert repository["code"] == "not_found"
    assert "the hub has no repository owner/other" in repository["message"]
    assert revision["code"] == "not_found"
    assert "no such revision" in revision["message"]


def test_a_hub_that_cannot_be_reached_says_what_to_do(tmp_path: Path):
    """Without a network a repository that is not here is an instruction, not a traceback."""
    failed = resolve_with_hub(REPOSITORY, tmp_path, "http://127.0.0.1:9")
    assert failed["code"] == "not_found"
    assert "the hub cannot be reached" in failed["message"]
    assert f"dflashctl pull {REPOSITORY}" in failed["message"]
