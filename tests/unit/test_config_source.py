"""The configuration's file: when it counts as changed, and how it is read again."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import msgspec
import pytest

from dflashd.protocol.messages import ConfigBody
from dflashd.supervisor.config_source import NO_FILE, Answer, ConfigSource
from dflashd.supervisor.core.effects import ReadConfig
from dflashd.supervisor.core.events import ConfigRead, ConfigRefused
from dflashd.supervisor.errors import ConfigError
from dflashd.supervisor.file_watch import FileWatch

ONE = "[models.a]\ntarget = 't'\n"
TWO = ONE + "[models.b]\ntarget = 't'\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.toml"
    path.write_text(ONE)
    return path


def read(source: ConfigSource, *, dry_run: bool = False, body: bytes = b"") -> Answer:
    async def ask() -> Answer:
        answer = asyncio.get_running_loop().create_future()
        source.read(ReadConfig(n=7, dry_run=dry_run, body=body), answer.set_result)
        return await asyncio.wait_for(answer, 10)

    return asyncio.run(ask())


def looks(source: ConfigSource) -> list[bool]:
    """What two looks at the file say, one after the other."""

    async def look() -> bool:
        changed = asyncio.Event()
        source.look(changed.set)
        async with asyncio.timeout(10):
            while source._is_looked_at:  # noqa: ASYNC110 (a look that finds nothing tells nobody)
                await asyncio.sleep(0.001)
        return changed.is_set()

    return [asyncio.run(look()) for _ in range(2)]


def test_change_counts_when_two_looks_see_the_same(file: Path) -> None:
    """A file that still grows is left alone; one that has settled is news until it is read."""
    watch = FileWatch(file)
    assert not watch.has_settled_on_another()
    file.write_text(ONE + "#")
    assert not watch.has_settled_on_another()
    file.write_text(ONE + "##")
    assert not watch.has_settled_on_another()
    assert watch.has_settled_on_another()
    watch.read_now()
    assert not watch.has_settled_on_another()


def test_missing_file_has_not_changed_and_a_replaced_one_has(file: Path) -> None:
    """Editors and deployments move files and links: what is there in the end counts."""
    watch = FileWatch(file)
    aside = file.rename(file.with_suffix(".old"))
    for _ in range(3):
        assert not watch.has_settled_on_another()
    aside.rename(file)
    for _ in range(3):
        assert not watch.has_settled_on_another()
    other = file.with_name("other.toml")
    other.write_text(ONE)
    file.unlink()
    file.symlink_to(other)
    watch.has_settled_on_another()
    assert watch.has_settled_on_another()


def test_file_is_read_again_with_its_plan(file: Path) -> None:
    """The answer has what the file says now, and what that changes."""
    source = ConfigSource(file)
    file.write_text(TWO)
    answer = read(source)
    assert isinstance(answer, ConfigRead)
    assert (answer.n, answer.source) == (7, str(file))
    assert [(m.name, m.fate) for m in answer.plan.models] == [("a", "kept"), ("b", "added")]
    source.adopt(answer.config)
    assert set(source.current.models) == {"a", "b"}


def test_dry_run_leaves_the_change_to_the_watch(file: Path) -> None:
    """Looking at a changed file does not keep it from being reloaded."""
    file.write_text("[daemon]\nwatch_config = true\n" + ONE)
    source = ConfigSource(file)
    file.write_text("[daemon]\nwatch_config = true\n" + TWO)
    read(source, dry_run=True)
    assert looks(source) == [False, True]
    read(source)
    assert looks(source) == [False, False]


def test_text_that_is_sent_along_takes_the_file_s_place(file: Path) -> None:
    """Its paths count from where it says, its problems name it."""
    source = ConfigSource(file)
    body = ConfigBody(text=ONE.replace("'t'", "'./t'"), source="other", base_dir="/base")
    answer = read(source, dry_run=True, body=msgspec.msgpack.encode(body))
    assert isinstance(answer, ConfigRead)
    assert answer.config.models["a"].target == "/base/t"
    body = ConfigBody(text="[models", source="other", base_dir="/base")
    answer = read(source, dry_run=True, body=msgspec.msgpack.encode(body))
    assert isinstance(answer, ConfigRefused)
    assert answer.reason.startswith("other is not valid TOML")
    assert isinstance(read(source, body=b"\xc1"), ConfigRefused)


def test_what_cannot_be_read_a_second_time_is_said(tmp_path: Path, file: Path) -> None:
    """No file, a pipe, a directory, a file that has gone: one sentence each, and no hang."""
    answer = read(ConfigSource(None))
    assert isinstance(answer, ConfigRefused)
    assert answer.reason == NO_FILE
    source = ConfigSource(file)
    file.unlink()
    assert "cannot be read" in reason(read(source))
    os.mkfifo(file)
    assert "no regular file" in reason(read(source))
    file.unlink()
    file.mkdir()
    assert "no regular file" in reason(read(source))
    with pytest.raises(ConfigError):
        ConfigSource(tmp_path / "gone.toml")


def reason(answer: Answer) -> str:
    assert isinstance(answer, ConfigRefused)
    return answer.reason


def test_loop_asks_a_file_system_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hangs holds the reading's own thread, from the first question on."""
    file.write_text("[daemon]\nwatch_config = true\n" + ONE)
    source = ConfigSource(file)
    threads: list[str] = []
    stat = Path.stat

    def watched(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        threads.append(threading.current_thread().name)
        return stat(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", watched)
    assert isinstance(read(source), ConfigRead)
    assert looks(source) == [False, False]
    assert set(threads) == {"read-config", "watch-config"}
