"""Readings of the configuration, and what a stop waits for, in a few events each."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from dflashd.protocol.errors import ErrorCode
from dflashd.protocol.messages import (
    Accepted,
    Cancel,
    Done,
    Failed,
    Generate,
    Load,
    LoadFailed,
    Reload,
    Reloaded,
    Retire,
    Shutdown,
    Spawn,
    Unload,
)
from dflashd.supervisor.config.configuration import Config, DaemonSection
from dflashd.supervisor.config.differences import in_effect, plan
from dflashd.supervisor.config.model_section import ModelSection
from dflashd.supervisor.core.effects import (
    AdoptConfig,
    Effect,
    InspectModel,
    Note,
    ReadConfig,
    SignalProcess,
    StopServing,
)
from dflashd.supervisor.core.events import (
    ConfigRead,
    ConfigRefused,
    ReloadAsked,
    ShutdownAsked,
)
from dflashd.supervisor.core.facts import ModelFacts
from dflashd.supervisor.core.reading import READ_TIMEOUT_S
from dflashd.supervisor.core.shutdown import KILLS_BEFORE_LEAVING

from .test_core_promises import OWNER, Bench, looked_at, to_clients, to_worker

SECTION = ModelSection(target="t")


class Owner(Bench):
    """The bench's core with a file behind it."""

    def __init__(self, **limits: Any) -> None:
        super().__init__(**limits)
        self.config = Config(daemon=DaemonSection(**limits), models={"a": SECTION})
        self.asked = 0

    def ask(self, *, dry_run: bool = False, body: bytes = b"") -> bytes:
        self.asked += 1
        id = bytes([self.asked]) * 16
        self.client(Reload(id=id, dry_run=dry_run), body, OWNER)
        return id

    def file_is(
        self, models: dict[str, ModelSection], n: int | None = None, **limits: Any
    ) -> list[Effect]:
        """The reading that has begun ends with this."""
        daemon = structs.replace(self.config.daemon, **limits)
        config = Config(daemon=daemon, models=models)
        found = plan(self.config, config)
        number = self.core.state.last_reading if n is None else n
        effects = self.give(ConfigRead(n=number, source="f", config=config, plan=found))
        if adopted(effects):
            self.config = in_effect(self.config, config)
        return effects


def readings(effects: list[Effect]) -> list[ReadConfig]:
    return [e for e in effects if isinstance(e, ReadConfig)]


def adopted(effects: list[Effect]) -> list[AdoptConfig]:
    return [e for e in effects if isinstance(e, AdoptConfig)]


def answered(effects: list[Effect]) -> list[bytes]:
    return [header.id for header in to_clients(effects, Reloaded)]


def test_readings_come_one_after_the_other_and_late_askers_share_the_next() -> None:
    """Who asks while a file is read did not ask about that file: all of them get the next one."""
    bench = Owner()
    first = bench.ask()
    late = [bench.ask(), bench.ask()]
    bench.give(ReloadAsked(cause="signal"))
    assert [r.n for r in readings(bench.heard)] == [1]
    effects = bench.file_is({"a": SECTION})
    assert answered(effects) == [first]
    assert [r.n for r in readings(effects)] == [2]
    effects = bench.file_is({"a": SECTION, "b": SECTION})
    assert answered(effects) == late
    assert readings(effects) == []
    assert list(bench.core.state.models) == ["a", "b"]


def test_dry_run_between_two_reloads_is_a_reading_of_its_own() -> None:
    """A dry run never applies, also when it was asked together with a reload."""
    bench = Owner()
    bench.ask()
    dry = bench.ask(dry_run=True)
    bench.ask()
    bench.file_is({"a": SECTION})
    effects = bench.file_is({})
    assert answered(effects) == [dry]
    assert not adopted(effects)
    assert list(bench.core.state.models) == ["a"]
    assert adopted(bench.file_is({}))


def test_sent_configuration_is_only_looked_at() -> None:
    """Text that comes along is never applied, and each text is read for itself."""
    bench = Owner()
    bench.ask(body=b"x")
    assert to_clients(bench.heard, Failed)[0].code is ErrorCode.bad_request
    ids = [bench.ask(dry_run=True, body=b"x"), bench.ask(dry_run=True, body=b"y")]
    assert readings(bench.heard)[0].body == b"x"
    effects = bench.file_is({})
    assert answered(effects) == ids[:1]
    assert [r.body for r in readings(effects)] == [b"y"]


def test_reading_that_does_not_end_is_given_up_and_its_late_end_is_dropped() -> None:
    """A hanging file system delays nobody for ever, and cannot apply an old file later."""
    bench = Owner()
    first, second = bench.ask(), bench.ask()
    effects = bench.pass_time(READ_TIMEOUT_S)
    failed = to_clients(effects, Failed)
    assert [header.id for header in failed] == [first]
    assert "could not be read within" in failed[0].message
    assert [r.n for r in readings(effects)] == [2]
    assert not adopted(bench.file_is({}, n=1))
    assert list(bench.core.state.models) == ["a"]
    assert answered(bench.file_is({}, n=2)) == [second]


def test_refused_file_answers_all_who_asked_and_changes_nothing() -> None:
    """The sentence reaches everyone; the tables stay."""
    bench = Owner()
    bench.ask()
    effects = bench.give(ConfigRefused(n=1, reason="f line 3: no"))
    assert [h.message for h in to_clients(effects, Failed)] == ["f line 3: no"]
    assert [e.name for e in effects if isinstance(e, Note)] == ["config_refused"]
    assert list(bench.core.state.models) == ["a"]


def test_asker_who_leaves_does_not_stop_the_reload() -> None:
    """A cancelled reload is answered once, and the file is applied all the same."""
    bench = Owner()
    id = bench.ask()
    assert to_clients(bench.client(Cancel(id=id), b"", OWNER), Failed)[0].id == id
    effects = bench.file_is({"a": SECTION, "b": SECTION})
    assert answered(effects) == []
    assert adopted(effects)


def test_load_in_progress_is_stopped_when_its_settings_change() -> None:
    """A model that loads with old settings starts over; those who wait keep their place."""
    bench = Owner()
    id = bench.generate(b"r")
    bench.start()
    bench.ask()
    changed = structs.replace(SECTION, max_tokens=3)
    effects = bench.file_is({"a": changed})
    assert not to_clients(effects, Failed)
    bench.exit(0)
    bench.start()
    loads = [e for e in bench.heard if getattr(e, "header", None) == Load(epoch=2, model="a")]
    assert [e.body.max_tokens for e in loads] == [3]  # pyright: ignore[reportAttributeAccessIssue]
    effects = bench.load()
    assert [h.id for h in to_clients(effects, Accepted) if h.position == 0] == [id]


def test_load_that_was_not_ordered_yet_takes_the_new_settings() -> None:
    """The process that starts already is good for the new settings too."""
    bench = Owner()
    bench.generate(b"r")
    bench.ask()
    bench.file_is({"a": structs.replace(SECTION, max_tokens=3)})
    bench.start()
    assert bench.worker.epoch == 1
    assert len(to_worker(bench.heard, Load)) == 1


def test_sizes_of_old_settings_are_not_reckoned_with() -> None:
    """A model whose settings change while its files are looked at is looked at again."""
    bench = Owner(active_requests_per_worker=8)
    bench.facts = None
    bench.generate(b"r")
    bench.ask()
    bench.file_is({"a": structs.replace(SECTION, target="u")}, active_requests_per_worker=3)
    old, new = [e for e in bench.heard if isinstance(e, InspectModel)]
    assert (old.body.target, old.concurrency) == ("t", 8)
    assert (new.body.target, new.concurrency) == ("u", 3)
    bench.give(looked_at(old, ModelFacts(model_type="old")))
    assert bench.core.state.models["a"].facts is None
    assert bench.worker.state == "stopped"
    bench.give(looked_at(new, ModelFacts(model_type="new")))
    assert bench.worker.state == "spawning"


def test_load_that_was_not_ordered_yet_is_reckoned_anew() -> None:
    """Its room was found for the old settings: the new ones may take more."""
    bench = Owner()
    bench.generate(b"r")
    bench.facts = ModelFacts(model_type="new")
    bench.ask()
    bench.file_is({"a": structs.replace(SECTION, target="u")})
    model = bench.core.state.models["a"]
    assert (model.state, model.facts) == ("loading", bench.facts)


def test_mended_model_is_blamed_no_more() -> None:
    """Why the old settings could not be loaded is not shown of the new ones."""
    bench = Owner()
    bench.generate(b"r")
    bench.start()
    bench.says(LoadFailed(epoch=1, model="a", code=ErrorCode.unsupported, message="no such draft"))
    model = bench.core.state.models["a"]
    assert (model.state, model.reason) == ("fatal", "no such draft")
    bench.ask()
    bench.file_is({"a": structs.replace(SECTION, target="u")})
    assert (model.state, model.reason) == ("absent", "")


def test_reload_undoes_no_retire() -> None:
    """What an operator unloaded stays unloaded, however its settings change."""
    bench = Owner()
    bench.ready()
    bench.client(Retire(id=b"R" * 16, model="a"), b"", OWNER)
    bench.exit(0)
    bench.ask()
    bench.file_is({"a": structs.replace(SECTION, max_tokens=3)})
    assert bench.worker.state == "stopped"
    assert not to_worker(bench.heard, Unload)


def test_reload_does_not_bring_back_what_an_operator_is_retiring() -> None:
    """Also not while its last request runs, though the new settings preload it."""
    bench = Owner()
    bench.ready()
    running = bench.generate(b"r")
    bench.client(Retire(id=b"R" * 16, model="a"), b"", OWNER)
    bench.ask()
    bench.file_is({"a": structs.replace(SECTION, max_tokens=3, preload=True)})
    bench.says(Done(id=running, epoch=1), b"x")
    bench.exit(0)
    assert bench.worker.state == "stopped"


def test_command_for_a_changed_model_waits_for_the_new_settings() -> None:
    """``spawn`` and ``retire`` that wait during a reload get their one answer."""
    bench = Owner()
    bench.ready()
    running = bench.generate(b"r")
    bench.ask()
    bench.file_is({"a": structs.replace(SECTION, max_tokens=3)})
    effects = bench.client(Spawn(id=b"T" * 16, model="a"), b"", OWNER)
    assert not to_clients(effects, Done)
    bench.says(Done(id=running, epoch=bench.worker.epoch), b"x")
    bench.exit(0)
    bench.start()
    assert [h.id for h in to_clients(bench.load(), Done)] == [b"T" * 16]


def test_stop_ends_readings_and_refuses_more() -> None:
    """A reload that has not been read when the daemon stops is refused, and never applied."""
    bench = Owner()
    bench.ready()
    bench.client(Generate(id=b"r" * 16, model="a"))
    id = bench.ask()
    effects = bench.give(ShutdownAsked())
    assert [(h.id, h.code) for h in to_clients(effects, Failed)] == [(id, ErrorCode.shutting_down)]
    assert not adopted(bench.file_is({}))
    bench.ask()
    assert to_clients(bench.heard, Failed)[-1].code is ErrorCode.shutting_down
    bench.give(ReloadAsked(cause="signal"))
    assert len(readings(bench.heard)) == 1


def test_stop_tells_what_it_waits_for() -> None:
    """First what runs, then who has to leave; each is told once."""
    bench = Owner()
    bench.ready()
    running = bench.generate(b"r")
    bench.client(Shutdown(id=b"Q" * 16), b"", OWNER)
    bench.says(Done(id=running, epoch=1), b"x")
    told = [h.waits_for for h in to_clients(bench.heard, Accepted) if h.id == b"Q" * 16]
    assert told == ["1 running request of a", "the end of the worker a"]
    effects = bench.exit(0)
    assert [h.id for h in to_clients(effects, Done)] == [b"Q" * 16]
    assert StopServing() in effects


def test_stop_leaves_a_process_that_no_kill_ends() -> None:
    """A process stuck in the kernel does not keep the daemon for ever; it is named."""
    bench = Owner()
    bench.ready()
    limits = bench.core.state.limits
    bench.give(ShutdownAsked())
    polite_s = limits.stop_timeout_s + limits.terminate_timeout_s
    early = bench.pass_time(polite_s + (KILLS_BEFORE_LEAVING - 1) * limits.kill_timeout_s - 0.5)
    assert StopServing() not in early
    effects = bench.pass_time(limits.kill_timeout_s + 0.5)
    assert StopServing() in effects
    assert "worker_left_behind" in [e.name for e in effects if isinstance(e, Note)]


def test_lost_process_is_killed_as_often_before_it_is_left() -> None:
    """Also of a worker that was killed before the stop, so many kills and no fewer are tried."""
    bench = Owner(pong_timeout_s=5)
    bench.ready()
    bench.pass_time(5)
    assert bench.worker.state == "lost"
    bench.give(ShutdownAsked())
    bench.pass_time(KILLS_BEFORE_LEAVING * bench.core.state.limits.kill_timeout_s)
    until = bench.heard[: bench.heard.index(StopServing())]
    assert sum(isinstance(e, SignalProcess) for e in until) == KILLS_BEFORE_LEAVING
