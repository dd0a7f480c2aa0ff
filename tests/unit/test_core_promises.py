"""Single promises of the core, each in a few events; the simulation covers the rest."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dflashd.protocol.errors import ErrorCode
from dflashd.protocol.messages import (
    Accepted,
    AddCredit,
    Assign,
    Cancel,
    Chunk,
    Done,
    Event as Told,
    Failed,
    Generate,
    Header,
    Loaded,
    LoadedBody,
    LoadFailed,
    Pin,
    Pong,
    Progress,
    ReadCache,
    Register,
    Retire,
    Spawn,
    Stop,
    Unloaded,
)
from dflashd.supervisor.config.limits import Limits
from dflashd.supervisor.config.model_section import ModelSection
from dflashd.supervisor.core.effects import (
    Effect,
    InspectModel,
    Note,
    SendToClient,
    SendToWorker,
    SignalProcess,
    SpawnProcess,
)
from dflashd.supervisor.core.events import (
    ClientErred,
    ClientSent,
    Event,
    ModelInspected,
    Peer,
    ProcessStarted,
    TimePassed,
    WorkerExited,
    WorkerSent,
    WorkerUnreachable,
)
from dflashd.supervisor.core.facts import ModelFacts
from dflashd.supervisor.core.machine import Core
from dflashd.supervisor.core.snapshot import Identity

LOADED = msgspec.msgpack.encode(
    LoadedBody(
        digest="d",
        engine="dflash",
        block_tokens=8,
        context_tokens=9,
        memory_bytes=1,
        device="cpu",
        dtype="float32",
    )
)
PEER = Peer("requests", b"peer")
OWNER = Peer("control", b"owner")


class Bench:
    """A core with one model, and a clock that a test sets."""

    def __init__(self, **limits: Any) -> None:
        identity = Identity(instance="i", version="v", pid=1, started_at=0)
        self.core = Core(Limits(**limits), {"a": ModelSection(target="t")}, identity, lambda: 1.0)
        self.now = 0.0
        self.facts: ModelFacts | None = ModelFacts(unknown="a test")
        self.heard: list[Effect] = []

    @property
    def worker(self) -> Any:
        return self.core.state.workers["a"]

    def give(self, event: Event) -> list[Effect]:
        effects = self.core.handle(event, self.now)
        self.heard += effects
        for effect in effects:
            if isinstance(effect, InspectModel) and self.facts is not None:
                effects += self.give(looked_at(effect, self.facts))
        return effects

    def client(self, header: Header, body: bytes = b"p", peer: Peer = PEER) -> list[Effect]:
        return self.give(ClientSent(peer=peer, header=header, body=body))

    def says(self, header: Header, body: bytes = b"") -> list[Effect]:
        return self.give(WorkerSent(worker="a", epoch=self.worker.epoch, header=header, body=body))

    def generate(self, name: bytes, **fields: Any) -> bytes:
        id = name * 16
        self.client(Generate(id=id, model="a", **fields))
        return id

    def start(self) -> None:
        epoch = self.worker.epoch
        self.give(ProcessStarted(worker="a", epoch=epoch, pid=5))
        self.says(Register(worker="a", epoch=epoch, pid=5, secret=b"s" * 16))

    def load(self) -> list[Effect]:
        return self.says(Loaded(epoch=self.worker.epoch, model="a"), LOADED)

    def ready(self) -> None:
        self.client(Spawn(id=b"S" * 16, model="a"), peer=OWNER)
        self.start()
        self.load()

    def exit(self, status: int = -9, log_tail: str = "") -> list[Effect]:
        event = WorkerExited(worker="a", epoch=self.worker.epoch, status=status, log_tail=log_tail)
        return self.give(event)

    def pass_time(self, seconds: float) -> list[Effect]:
        """Let time pass in ticks, as the shell does."""
        effects: list[Effect] = []
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.5)
            effects += self.give(TimePassed())
        return effects


def looked_at(asked: InspectModel, facts: ModelFacts) -> ModelInspected:
    return ModelInspected(model=asked.model, body=asked.body, facts=facts)


def to_clients(effects: list[Effect], kind: type[Header]) -> list[Any]:
    return [e.header for e in effects if isinstance(e, SendToClient) and type(e.header) is kind]


def to_worker(effects: list[Effect], kind: type[Header]) -> list[Any]:
    return [e.header for e in effects if isinstance(e, SendToWorker) and type(e.header) is kind]


def noted(effects: list[Effect], name: str) -> list[dict[str, Any]]:
    return [e.fields for e in effects if isinstance(e, Note) and e.name == name]


def test_single_flight() -> None:
    """Many requests and commands for one model start one process."""
    bench = Bench()
    for n in range(5):
        bench.generate(bytes([n]))
        bench.client(Spawn(id=bytes([n + 100]) * 16, model="a"), peer=OWNER)
    assert sum(isinstance(e, SpawnProcess) for e in bench.heard) == 1


def test_lease_exists_before_ready_is_published() -> None:
    """When a model becomes ready, its waiters are assigned before anyone hears of it."""
    bench = Bench()
    bench.client(Spawn(id=b"S" * 16, model="a"), peer=OWNER)
    bench.generate(b"1")
    bench.start()
    kinds = [type(e.header) for e in bench.load() if isinstance(e, SendToWorker | SendToClient)]
    assert kinds.index(Assign) < kinds.index(Accepted) < kinds.index(Done)


def test_cancel_racing_done_ends_once() -> None:
    """The worker's Done crosses the Cancel: the client hears one end, the Done."""
    bench = Bench()
    bench.ready()
    id = bench.generate(b"1")
    assert to_worker(bench.client(Cancel(id=id), b""), Cancel)
    assert to_clients(bench.says(Done(id=id, epoch=1)), Done)
    assert bench.client(Cancel(id=id), b"") == []
    late = Failed(id=id, epoch=1, code=ErrorCode.cancelled, message="c")
    assert to_clients(bench.says(late), Failed) == []


def test_double_cancel_is_one_cancel() -> None:
    """The worker is told once, the client is answered once."""
    bench = Bench()
    bench.ready()
    id = bench.generate(b"1")
    bench.client(Cancel(id=id), b"")
    assert bench.client(Cancel(id=id), b"") == []


def test_old_epoch_is_dropped_and_counted() -> None:
    """What an earlier incarnation says reaches nobody."""
    bench = Bench()
    bench.ready()
    bench.exit()
    bench.pass_time(1)
    id = bench.generate(b"1")
    bench.start()
    bench.load()
    old = WorkerSent(worker="a", epoch=1, header=Done(id=id, epoch=1))
    assert bench.give(old) == []
    assert bench.give(WorkerExited(worker="a", epoch=1, status=0)) == []
    assert bench.core.state.counters["stale_dropped"] == 2
    assert bench.worker.state == "busy"


def test_credit_never_exceeds_the_window() -> None:
    """A client cannot have more chunks in flight than the window, whatever it grants."""
    bench = Bench()
    bench.ready()
    id = bench.generate(b"1", credit=10)
    granted = to_worker(bench.client(AddCredit(id=id, chunks=64), b""), AddCredit)
    assert granted[0].chunks == 54
    assert bench.client(AddCredit(id=id, chunks=64), b"") == []
    bench.says(Chunk(id=id, seq=0, epoch=1), b"x")
    assert to_worker(bench.client(AddCredit(id=id, chunks=64), b""), AddCredit)[0].chunks == 1


def test_backoff_grows_with_jitter_and_forgets_after_stable_time() -> None:
    """Each failure doubles the wait; a long good run starts anew."""
    bench = Bench(failures_before_fatal=10, backoff_wait_s=100, stable_s=30)
    waits: list[float] = []
    for _ in range(4):
        bench.generate(bytes([len(waits)]), deadline_ms=100_000)
        bench.start()
        bench.exit()
        waits.append(bench.worker.deadline - bench.now)
        bench.pass_time(waits[-1] + 0.5)
    assert waits == [0.5, 1.0, 2.0, 4.0]
    bench.start()
    bench.load()
    epoch = bench.worker.epoch
    for n in range(70):
        bench.pass_time(0.5)
        bench.says(Pong(epoch=epoch, n=n, steps=n, active=1, memory_bytes=1))
    bench.exit()
    assert bench.worker.deadline - bench.now == 0.5


def test_each_incarnation_has_to_prove_itself_stable() -> None:
    """Two short runs are not one long one: the time of the earlier does not count."""
    bench = Bench(stable_s=30, pong_timeout_s=1000, failures_before_fatal=9, backoff_wait_s=9)
    bench.ready()
    for failures in (1, 2):
        bench.pass_time(20)
        bench.exit()
        assert len(bench.worker.failures) == failures
        bench.generate(bytes([failures]))
        bench.pass_time(2)
        bench.start()
        bench.load()


def test_far_restart_is_refused_with_the_time_left() -> None:
    """While a restart is far away, requests are told to come back, and when."""
    bench = Bench(backoff_first_s=20)
    bench.ready()
    bench.exit(log_tail="boom")
    failed = to_clients(bench.client(Generate(id=b"1" * 16, model="a")), Failed)[0]
    assert failed.code is ErrorCode.worker_restarting
    assert failed.retryable
    assert failed.retry_after_s == pytest.approx(20)


def test_operators_stop_wins_over_the_restart() -> None:
    """Retire during a backoff cancels the restart, and its waiters are told."""
    bench = Bench()
    bench.ready()
    bench.exit()
    id = bench.generate(b"1")
    effects = bench.client(Retire(id=b"R" * 16, model="a"), b"", OWNER)
    assert to_clients(effects, Failed)[0].id == id
    assert to_clients(effects, Done)[0].id == b"R" * 16
    assert not any(isinstance(e, SpawnProcess) for e in bench.pass_time(30))


def test_operators_stop_wins_over_a_pin_when_the_load_ends_in_a_crash() -> None:
    """A pinned model that is retired while it loads stays out, also if its worker dies then."""
    bench = Bench()
    bench.client(Pin(id=b"P" * 16, model="a"), peer=OWNER)
    id = bench.generate(b"r")
    bench.start()
    bench.client(Retire(id=b"R" * 16, model="a"), peer=OWNER)
    bench.client(Cancel(id=id))
    effects = bench.exit()
    assert [h.id for h in to_clients(effects, Done)] == [b"R" * 16]
    effects = bench.pass_time(120)
    assert bench.worker.state == "stopped"
    assert not any(isinstance(effect, SpawnProcess) for effect in effects)


def test_spawn_clears_fatal_and_starts_at_once() -> None:
    """An operator's spawn tries again although the worker was given up."""
    bench = Bench()
    bench.ready()
    bench.exit(status=78)
    assert bench.worker.state == "fatal"
    effects = bench.client(Spawn(id=b"T" * 16, model="a"), b"", OWNER)
    assert any(isinstance(e, SpawnProcess) for e in effects)


def test_failed_load_answers_with_the_workers_reason_and_stops_it() -> None:
    """All who wait hear the same reason; the worker is let go."""
    bench = Bench()
    id = bench.generate(b"1")
    bench.start()
    effects = bench.says(
        LoadFailed(epoch=1, model="a", code=ErrorCode.unsupported, message="a Domino draft")
    )
    failed = to_clients(effects, Failed)[0]
    assert (failed.id, failed.code, failed.message) == (
        id,
        ErrorCode.unsupported,
        "a Domino draft",
    )
    assert to_worker(effects, Stop)
    bench.exit(0)
    assert bench.worker.state == "stopped"
    model = bench.core.state.models["a"]
    assert (model.state, model.reason) == ("fatal", "a Domino draft")


@pytest.mark.parametrize(
    ("status", "cause", "sentence"),
    [
        (-9, "killed", "was killed by SIGKILL"),
        (-99, "killed", "was killed by signal 99"),
        (0, "left", "left without being asked"),
        (3, "exited", "ended with exit status 3"),
        (78, "unusable", "found its configuration unusable (exit status 78)"),
    ],
)
def test_how_a_worker_ended_is_a_word_and_a_sentence(
    status: int, cause: str, sentence: str
) -> None:
    """Its status and, where the last line of its log tells of trouble, that line are told."""
    bench = Bench()
    bench.ready()
    id = bench.generate(b"1")
    effects = bench.exit(status, log_tail="INFO routine\nRuntimeError: boom\n")
    assert bench.worker.cause == cause
    assert bench.worker.reason == f"{sentence}; its last words: RuntimeError: boom"
    assert bench.worker.last_lines == "INFO routine\nRuntimeError: boom\n"
    assert bench.worker.state == ("fatal" if status == 78 else "backoff")
    assert (bench.worker.pid, bench.worker.connected, bench.worker.memory_bytes) == (None, False, 0)
    failed = to_clients(effects, Failed)[0]
    assert (failed.id, failed.code, failed.retryable) == (id, ErrorCode.worker_lost, True)
    assert failed.message.startswith(f"the worker of this model {sentence}")
    [note] = noted(effects, "worker_exited")
    assert (note["status"], note["state"]) == (status, "busy")


def test_routine_last_words_are_not_a_reason() -> None:
    """A log that ended with everyday lines, or is empty, explains nothing."""
    for tail in ("", "boom\n12:00 INFO served\n"):
        bench = Bench()
        bench.ready()
        bench.exit(1, log_tail=tail)
        assert bench.worker.reason == "ended with exit status 1"


def test_worker_that_was_asked_to_leave_has_not_failed() -> None:
    """After a stop of ours no status counts as a failure, and nothing is left to read."""
    bench = Bench()
    bench.ready()
    bench.client(Retire(id=b"R" * 16, model="a"), b"", OWNER)
    bench.exit(-15, log_tail="leaving")
    assert (bench.worker.state, bench.worker.cause) == ("stopped", None)
    assert (bench.worker.failures, bench.worker.last_lines) == ([], "")
    assert bench.core.state.counters["worker_failures"] == 0


def test_crash_during_a_retire_ends_the_retire() -> None:
    """Who is to go and falls over on the way is gone: nothing is restarted, the operator hears."""
    bench = Bench()
    bench.ready()
    bench.generate(b"1")
    bench.client(Retire(id=b"R" * 16, model="a"), b"", OWNER)
    effects = bench.exit(-9)
    assert bench.worker.state == "stopped"
    assert [h.id for h in to_clients(effects, Done)] == [b"R" * 16]


def test_worker_that_cannot_be_reached_is_lost() -> None:
    """A living worker whose connection is closed is killed and its requests are answered."""
    bench = Bench()
    bench.ready()
    id = bench.generate(b"1")
    effects = bench.give(WorkerUnreachable(worker="a", epoch=1))
    assert (bench.worker.state, bench.worker.cause) == ("lost", "unreachable")
    assert [e.signal for e in effects if isinstance(e, SignalProcess)] == ["kill"]
    failed = to_clients(effects, Failed)[0]
    assert (failed.id, failed.code) == (id, ErrorCode.worker_lost)
    assert failed.message == "the worker of this model closed its connection"
    assert bench.give(WorkerUnreachable(worker="a", epoch=1)) == []
    assert bench.exit(-9)
    assert (bench.worker.state, bench.worker.cause) == ("backoff", "unreachable")


def test_load_lasts_as_long_as_it_moves() -> None:
    """Progress feeds the stall timer, its repetition does not; then the worker is lost."""
    bench = Bench(load_stall_s=10, loading_pong_timeout_s=1000)
    id = bench.generate(b"1")
    bench.start()
    for done in (1, 2, 3):
        bench.pass_time(9)
        bench.says(Progress(epoch=1, model="a", stage="weights", done=done, total=9, unit="bytes"))
    bench.pass_time(5)
    bench.says(Progress(epoch=1, model="a", stage="weights", done=3, total=9, unit="bytes"))
    bench.pass_time(4.5)
    model = bench.core.state.models["a"]
    assert (model.state, model.stage, model.stage_done, model.stage_total) == (
        "loading",
        "weights",
        3,
        9,
    )
    failed = to_clients(bench.pass_time(0.5), Failed)
    assert (bench.worker.state, bench.worker.cause) == ("lost", "load_stalled")
    assert failed == [], "who waits is served by the next incarnation"
    bench.exit()
    assert (model.state, model.stage, model.stage_done, model.stage_total) == ("absent", "", 0, 0)
    assert [h.code for h in to_clients(bench.heard, Failed) if h.id == id] == []


def test_word_about_a_model_that_is_not_where_it_says_is_dropped() -> None:
    """A load that is told twice, an unload nobody ordered and a foreign model change nothing."""
    bench = Bench()
    bench.ready()
    model = bench.core.state.models["a"]
    assert bench.load() == []
    assert bench.says(Unloaded(epoch=1, model="a")) == []
    late = LoadFailed(epoch=1, model="a", code=ErrorCode.internal, message="m")
    assert bench.says(late) == []
    assert bench.says(Loaded(epoch=1, model="b"), LOADED) == []
    assert bench.core.state.counters["stale_dropped"] == 4
    assert (model.state, model.loads, model.unloads) == ("ready", 1, 0)


def test_load_with_an_unreadable_report_costs_the_worker() -> None:
    """A worker that speaks another language about what it loaded is not served from."""
    bench = Bench()
    bench.generate(b"1")
    bench.start()
    effects = bench.says(Loaded(epoch=1, model="a"), b"\xff")
    assert to_worker(effects, Assign) == []
    assert (bench.worker.state, bench.worker.cause) == ("lost", "broke_protocol")
    assert "cannot be read" in bench.worker.reason
    assert bench.core.state.counters["worker_protocol_errors"] == 1


def test_progress_is_told_at_a_bearable_pace() -> None:
    """A new stage and a whole one are told at once, steps between them ten times a second."""
    bench = Bench()
    bench.client(Spawn(id=b"S" * 16, model="a"), peer=OWNER)
    waiting = bench.generate(b"1")
    bench.start()

    def told(stage: str, done: int, after_s: float = 0.0) -> int:
        bench.now += after_s
        header = Progress(epoch=1, model="a", stage=stage, done=done, total=9, unit="bytes")
        events = to_clients(bench.says(header), Told)
        assert {(e.name, e.stage, e.done, e.total, e.unit) for e in events} <= {
            ("progress", stage, done, 9, "bytes")
        }
        assert {e.id for e in events} in (set(), {b"S" * 16, waiting})
        return len(events)

    assert told("weights", 0) == 2
    assert told("weights", 1, 0.05) == 0
    assert told("weights", 2, 0.05) == 2
    assert told("weights", 2, 5) == 0
    assert told("weights", 3) == 2
    assert told("weights", 4, 0.05) == 0
    assert told("weights", 9, 0.01) == 2
    assert told("draft", 1, 0.01) == 2
    assert bench.says(Progress(epoch=1, model="b", stage="s", done=1, total=9, unit="u")) == []


def test_failed_load_is_forgotten_when_the_next_succeeds() -> None:
    """What once went wrong is not shown beside a model that is there, nor counted against it."""
    bench = Bench()
    bench.client(Spawn(id=b"S" * 16, model="a"), peer=OWNER)
    bench.start()
    bench.says(LoadFailed(epoch=1, model="a", code=ErrorCode.load_failed, message="no file"))
    model = bench.core.state.models["a"]
    assert (model.state, model.reason, len(model.failures)) == ("backoff", "no file", 1)
    bench.exit(0)
    bench.generate(b"1")
    bench.pass_time(1)
    bench.start()
    bench.load()
    assert (model.state, model.reason, model.failures) == ("ready", "", [])


def test_stop_escalates_to_sigterm_and_sigkill_and_repeats() -> None:
    """Polite stop, SIGTERM, SIGKILL, each after its own time; SIGKILL is repeated."""
    bench = Bench()
    bench.ready()
    assert to_worker(bench.client(Retire(id=b"R" * 16, model="a"), b"", OWNER), Stop)
    signals = [e.signal for e in bench.pass_time(21) if isinstance(e, SignalProcess)]
    assert signals == ["terminate", "kill", "kill", "kill"]
    assert to_clients(bench.exit(), Done)[0].id == b"R" * 16
    assert bench.core.state.counters["workers_killed"] == 3
    bench.ready()
    assert to_worker(bench.client(Retire(id=b"Q" * 16, model="a"), b"", OWNER), Stop)
    until_s = bench.core.state.limits.stop_timeout_s
    signals = [e.signal for e in bench.pass_time(until_s) if isinstance(e, SignalProcess)]
    assert signals == ["terminate"], "the next incarnation is asked politely again"


def test_who_waits_in_silence_is_told_again_where_it_stands() -> None:
    """Each waiting request hears its own position and what it waits for, at a steady pace."""
    bench = Bench(keepalive_s=5)
    ids = [bench.generate(name) for name in (b"1", b"2", b"3")]
    bench.pass_time(4.5)
    told = to_clients(bench.pass_time(0.5), Accepted)
    assert [(h.id, h.position) for h in told] == [(id, n) for n, id in enumerate(ids, start=1)]
    assert {h.waits_for for h in told} == {"the worker of a is starting"}
    assert to_clients(bench.pass_time(4.5), Accepted) == []


def test_drain_serves_what_was_accepted_before_and_nothing_later() -> None:
    """Requests accepted before a retire are served by the old worker, later ones by the next."""
    bench = Bench(active_requests_per_worker=1)
    bench.ready()
    first, second = bench.generate(b"1"), bench.generate(b"2")
    bench.client(Retire(id=b"R" * 16, model="a"), b"", OWNER)
    later = bench.generate(b"3")
    assert to_worker(bench.says(Done(id=first, epoch=1)), Assign)[0].id == second
    effects = bench.says(Done(id=second, epoch=1))
    assert to_worker(effects, Stop)
    assert to_worker(effects, Assign) == []
    effects = bench.exit(0)
    assert to_clients(effects, Done)[0].id == b"R" * 16
    bench.start()
    assert to_worker(bench.load(), Assign)[0].id == later


def test_unreadable_message_about_a_live_request_ends_it_once() -> None:
    """A client that garbles a message about its own request hears one end, not two."""
    bench = Bench()
    bench.ready()
    id = bench.generate(b"1")
    erred = ClientErred(peer=PEER, code=ErrorCode.bad_request, message="no", id=id)
    assert to_clients(bench.give(erred), Failed)[0].id == id
    assert to_clients(bench.says(Done(id=id, epoch=1)), Done) == []


def test_pause_of_our_own_is_not_blamed_on_workers() -> None:
    """After minutes of sleep no worker is taken for hung."""
    bench = Bench()
    bench.ready()
    bench.generate(b"1")
    bench.pass_time(1)
    bench.now += 3600
    bench.give(TimePassed())
    assert bench.worker.state == "busy"


def test_pause_of_our_own_moves_every_limit_of_a_worker() -> None:
    """Starting, loading, draining and letting go have the time back that we did not run."""
    bench = Bench(
        register_timeout_s=10,
        load_stall_s=10,
        drain_timeout_s=10,
        cancel_timeout_s=10,
        release_timeout_s=20,
    )

    def slept(hours: float = 1) -> list[Effect]:
        bench.give(TimePassed())
        bench.now += hours * 3600
        return bench.give(TimePassed())

    bench.client(Spawn(id=b"S" * 16, model="a"), peer=OWNER)
    bench.give(ProcessStarted(worker="a", epoch=1, pid=5))
    assert noted(slept(), "paused") == [{"gap_s": 3600}]
    assert bench.worker.state == "registering"
    bench.says(Register(worker="a", epoch=1, pid=5, secret=b"s" * 16))
    slept()
    assert bench.core.state.models["a"].state == "loading"
    bench.load()
    id = bench.generate(b"1")
    bench.client(ReadCache(id=b"C" * 16, model="a"), b"", OWNER)
    bench.client(Retire(id=b"R" * 16, model="a"), b"", OWNER)
    bench.client(Cancel(id=id), b"")
    assert to_clients(slept(), Failed) == []
    assert bench.core.state.models["a"].state == "draining"
    assert bench.core.state.counters["pauses"] == 3
    assert to_clients(bench.pass_time(9.5), Failed) == []
    assert [h.id for h in to_clients(bench.pass_time(0.5), Failed)] == [id]


def test_pause_of_our_own_does_not_prolong_a_backoff() -> None:
    """A restart that came due while we slept happens at once; a late tick is no pause."""
    bench = Bench(backoff_first_s=20, backoff_wait_s=30)
    bench.ready()
    bench.exit()
    bench.generate(b"1", deadline_ms=10_000_000)
    bench.give(TimePassed())
    bench.now += 2
    bench.give(TimePassed())
    assert bench.core.state.counters["pauses"] == 0
    bench.now += 3600
    assert any(isinstance(e, SpawnProcess) for e in bench.give(TimePassed()))


def test_stalled_engine_without_credit_is_not_a_hang() -> None:
    """An engine that may not send because its client does not read is left alone."""
    bench = Bench(decode_stall_s=5, prefill_stall_s=5, pong_timeout_s=1000)
    bench.ready()
    id = bench.generate(b"1", credit=1)
    bench.says(Chunk(id=id, seq=0, epoch=1), b"x")
    bench.pass_time(20)
    assert bench.worker.state == "busy"
    bench.client(AddCredit(id=id, chunks=1), b"")
    bench.pass_time(4)
    assert bench.worker.state == "busy"
    bench.pass_time(2)
    assert bench.worker.state == "lost"
