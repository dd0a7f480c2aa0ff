"""A reload on the whole stack: real models of random weights in one worker process."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflashd.protocol import Client, Daemon
from dflashd.protocol.generation import Completion

from ..tiny import make_draft, make_target

pytestmark = pytest.mark.slow

TOKENS = 200


def test_changed_model_of_a_group_is_loaded_anew_beside_a_running_stream(short_dir: Path):
    """One model takes its new settings in the same process; not a token of the other's changes."""
    one, draft = make_target(short_dir / "one"), make_draft(short_dir / "draft")
    two = make_target(short_dir / "two", seed=1)
    run, config = short_dir / "run", short_dir / "config.toml"

    def write(max_tokens: int) -> None:
        config.write_text(
            f'[daemon]\nruntime_dir = "{run}"\nstate_dir = "{short_dir / "state"}"\n'
            f'[models.one]\ntarget = "{one}"\ndraft = "{draft}"\ngroup = "g"\n'
            f"cache = {{ enabled = false }}\n"
            f'[models.two]\ntarget = "{two}"\ngroup = "g"\nmax_tokens = {max_tokens}\n'
        )

    write(4)
    with (
        Daemon(config, runtime_dir=run, log=short_dir / "daemon.log") as daemon,
        daemon.client() as client,
    ):
        alone = ask(client, "one", max_tokens=TOKENS)
        assert len(ask(client, "two").tokens) == 4
        stream = client.generate("one", "the quick", max_tokens=TOKENS, ignore_eos=True)
        chunks = iter(stream)
        tokens = list(next(chunks).tokens)
        write(6)
        found = client.reload()
        assert {model.name: model.change for model in found.models} == {
            "one": "kept",
            "two": "replaced",
        }
        after = ask(client, "two")
        assert len(after.tokens) == 6
        assert after.stats.worker_pid == alone.stats.worker_pid
        for chunk in chunks:
            tokens += chunk.tokens
        assert tuple(tokens) == tuple(alone.tokens)


def ask(client: Client, model: str, max_tokens: int | None = None) -> Completion:
    return client.generate(model, "the quick", max_tokens=max_tokens, ignore_eos=True).wait()
