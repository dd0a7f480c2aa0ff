"""From one configuration to another: what the plan says of every kind of change."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from dflashd.protocol.messages import KeyChange, LoadBody
from dflashd.supervisor import core
from dflashd.supervisor.config.configuration import Config, DaemonSection
from dflashd.supervisor.config.differences import WORKER_KEYS, in_effect, plan
from dflashd.supervisor.config.file import parse
from dflashd.supervisor.config.http_section import HttpSection
from dflashd.supervisor.config.limits import Limits
from dflashd.supervisor.config.model_section import ModelSection

_HOME = Path(core.__path__[0])
CORE = "\n".join(
    f.read_text() for f in (*_HOME.glob("*.py"), _HOME.parent / "config" / "restarts.py")
)


def config(text: str) -> Config:
    return parse(text, source="x.toml", base_dir=Path("/base"))


def model(rest: str = "", name: str = "a") -> str:
    return f"[models.{name}]\ntarget = 't'\n{rest}\n"


def test_same_file_changes_nothing() -> None:
    """Whatever is written in another order, or as its own default, keeps every worker."""
    old = config(model() + model(name="b"))
    new = config(model("pinned = false\n[models.b.cache]", name="b") + model("max_tokens = 512"))
    found = plan(old, new)
    assert [(m.name, m.fate, m.keys) for m in found.models] == [
        ("b", "kept", ()),
        ("a", "kept", ()),
    ]
    assert found.daemon == found.restart == ()


def test_added_and_removed_models_are_named() -> None:
    """A section that appears is added, one that disappears is removed."""
    found = plan(config(model()), config(model(name="b")))
    assert [(m.name, m.fate) for m in found.models] == [("b", "added"), ("a", "removed")]
    assert [m.name for m in found.of("removed", "kept")] == ["a"]


@pytest.mark.parametrize(
    "line", ["pinned = true", "preload = true", "idle_ttl_s = 5", "placement = 'strict'"]
)
def test_what_only_the_supervisor_uses_keeps_the_worker(line: str) -> None:
    """A key no worker was given changes without touching the worker."""
    found = plan(config(model()), config(model(line)))
    assert found.models[0].fate == "adjusted"
    assert [change.key for change in found.models[0].keys] == [line.split(maxsplit=1)[0]]


@pytest.mark.parametrize(
    ("line", "key", "before", "after"),
    [
        ("draft = 'd'", "draft", "unset", '"d"'),
        ("block_tokens = 4", "block_tokens", "unset", "4"),
        ("group = 'g'", "group", "unset", '"g"'),
        ("backend = 'other'", "backend", '"dflash"', '"other"'),
        ("[models.a.cache]\nram_bytes = 7", "cache.ram_bytes", "2147483648", "7"),
        ("[models.a.sampling]\ntop_k = 3", "sampling.top_k", "unset", "3"),
    ],
)
def test_what_a_worker_was_given_replaces_the_model(
    line: str, key: str, before: str, after: str
) -> None:
    """A key of the load is named with both values, inner tables by a dot."""
    found = plan(config(model()), config(model(line)))
    assert found.models[0].fate == "replaced"
    assert found.models[0].keys == (KeyChange(key=key, before=before, after=after),)


def test_one_key_of_the_load_is_enough_to_replace() -> None:
    """Among keys that change in place one of the load decides; long values are cut."""
    found = plan(config(model()), config(model(f"pinned = true\ndraft = '{'d' * 2000}'")))
    assert found.models[0].fate == "replaced"
    shown = {change.key: change.after for change in found.models[0].keys}
    assert shown == {"pinned": "true", "draft": '"' + "d" * 999}


def test_every_key_of_a_model_is_the_worker_s_or_the_supervisor_s() -> None:
    """A new key of the load is one that replaces, without anybody thinking of it."""
    assert set(LoadBody.__struct_fields__) <= WORKER_KEYS
    assert set(ModelSection.__struct_fields__) >= WORKER_KEYS


def test_limits_change_live_and_directories_need_a_restart() -> None:
    """Every limit is taken at once; where sockets and logs are stays, and is named."""
    found = plan(
        config(""), config("[daemon]\nping_interval_s = 2\nruntime_dir = 'r'\nstate_dir = '/s'")
    )
    assert [change.key for change in found.daemon] == ["ping_interval_s"]
    assert [(change.key, change.after) for change in found.restart] == [
        ("runtime_dir", '"/base/r"'),
        ("state_dir", '"/s"'),
    ]


@pytest.mark.parametrize("key", Limits.__struct_fields__)
def test_each_limit_changes_live_or_is_said_not_to(key: str) -> None:
    """What the core looks up each time changes at once; what the shell took once does not."""
    other = structs.replace(DaemonSection(), **{key: getattr(DaemonSection(), key) + 1})
    found = plan(Config(), Config(daemon=other))
    is_live = f"limits.{key}" in CORE
    assert [change.key for change in found.daemon] == [key] * is_live
    assert [change.key for change in found.restart] == [key] * (not is_live)


def test_directory_written_out_is_not_a_change() -> None:
    """The default directory, named in the file, is the same directory."""
    named = DaemonSection(runtime_dir=str(Config().runtime_dir), state_dir=str(Config().state_dir))
    assert plan(Config(), Config(daemon=named)).restart == ()


def test_what_needs_a_restart_stays_in_effect_and_is_told_each_time() -> None:
    """A directory that was ignored once is ignored and named at the next reload too."""
    old = config("[daemon]\nruntime_dir = '/r'\nping_interval_s = 1")
    new = config("[daemon]\nruntime_dir = '/q'\nping_interval_s = 3" + "\n" + model())
    now = in_effect(old, new)
    assert now.runtime_dir == Path("/r")
    assert (now.daemon.ping_interval_s, set(now.models)) == (3, {"a"})
    assert [change.key for change in plan(now, new).restart] == ["runtime_dir"]
    assert plan(now, new).daemon == ()


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (None, HttpSection(), [("[http]", "unset", "{}")]),
        (HttpSection(port=2), None, [("[http]", '{"port":2}', "unset")]),
        (HttpSection(), HttpSection(port=1), [("[http] port", "8383", "1")]),
    ],
)
def test_the_gateway_changes_with_a_restart(
    old: HttpSection | None, new: HttpSection | None, told: list[tuple[str, str, str]]
) -> None:
    """[http] added, removed or changed is told in what it says, waits, and stays as it was."""
    found = plan(Config(http=old), Config(http=new))
    shown = [(change.key, change.before, change.after) for change in found.restart]
    assert shown == told
    assert in_effect(Config(http=old), Config(http=new)).http == old
