"""A checkpoint is data: whatever its files say, nothing in it is run."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from dflashd.protocol.errors import DflashError
from dflashd.protocol.messages import LoadBody
from dflashd.worker.engine.loader import load_model

from ..tiny import make_target

EVIL = "from pathlib import Path\nPath({proof!r}).touch()\n"
AUTO_MAP = {
    "config.json": {"auto_map": {"AutoModelForCausalLM": "evil.Model", "AutoConfig": "evil.C"}},
    "tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"]}},
}


def change(file: Path, **fields: Any) -> None:
    """Set fields of a JSON file, which may not be there yet."""
    value = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**value, **fields}))


@pytest.mark.parametrize(
    "fields",
    [
        {"config.json": {"model_file": "evil.py"}},
        AUTO_MAP,
        {"tokenizer_config.json": {"tool_parser_type": "../../evil"}},
        {"tokenizer_config.json": {"chat_template_type": ".evil"}},
    ],
)
def test_python_in_a_checkpoint_is_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, dict[str, Any]]
) -> None:
    """Custom model files, custom tokenizers, parsers by path: refused or left alone, never run."""
    target = make_target(tmp_path / "target")
    proof = tmp_path / "it-was-run"
    (target / "evil.py").write_text(EVIL.format(proof=str(proof)))
    monkeypatch.chdir(target)
    for name, changed in fields.items():
        change(target / name, **changed)
    with contextlib.suppress(DflashError):
        load_model("t", LoadBody(target=str(target)), lambda *_: None)
    assert not proof.exists()


def test_a_chat_template_cannot_reach_python(tmp_path: Path) -> None:
    """Templates come with checkpoints: one that climbs to Python's own objects is stopped."""
    target = make_target(tmp_path / "target")
    proof = tmp_path / "it-was-run"
    climb = (
        "{% for c in ''.__class__.__mro__[1].__subclasses__() %}"
        "{% if c.__name__ == 'Popen' %}{{ c(['touch', '" + str(proof) + "']) }}{% endif %}"
        "{% endfor %}"
    )
    change(target / "tokenizer_config.json", chat_template=climb)
    model = load_model("t", LoadBody(target=str(target)), lambda *_: None)
    with pytest.raises(Exception, match="unsafe"):
        model.tokenizer.apply_chat_template([{"role": "user", "content": "x"}])
    assert not proof.exists()
