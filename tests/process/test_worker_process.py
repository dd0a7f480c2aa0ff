"""A real worker process under a scripted supervisor: registration, loads, requests, exits."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from dflashd.protocol.codec import encode
from dflashd.protocol.errors import ErrorCode
from dflashd.protocol.messages import (
    Assign,
    CacheSettings,
    CacheState,
    DoneBody,
    Failed,
    GenerateBody,
    Load,
    LoadBody,
    LoadFailed,
    Ping,
    Pong,
    Progress,
    ReadCache,
    Stop,
    Unload,
    Unloaded,
)

from ..thirdparty.site import install
from ..tiny import Shape, make_draft, make_target
from .scripted_supervisor import EPOCH, ScriptedSupervisor

pytestmark = pytest.mark.slow

LONG = Shape(context_tokens=200_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target ``t`` and its draft ``d``."""
    folder = tmp_path_factory.mktemp("tiny")
    make_target(folder / "t", LONG)
    make_draft(folder / "d", LONG)
    return folder


def body_of(folder: Path, **changes: object) -> LoadBody:
    values: dict[str, object] = {"target": str(folder / "t"), "draft": str(folder / "d")}
    return LoadBody(**(values | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def shared(folder: Path) -> Iterator[ScriptedSupervisor]:
    """A registered worker with model ``m`` (small prefill chunks), for tests that leave it so."""
    with ScriptedSupervisor() as supervisor:
        supervisor.start()
        supervisor.register()
        supervisor.load("m", body_of(folder, prefill_chunk_tokens=16))
        yield supervisor


def asking(text: str = "the quick brown fox", **changes: object) -> GenerateBody:
    values: dict[str, object] = {"prompt": text, "max_tokens": 12, "ignore_eos": True}
    return GenerateBody(**(values | changes))  # type: ignore[arg-type]


LONG_PROMPT = GenerateBody(tokens=(5, 6, 7, 8) * 40_000, max_tokens=4, ignore_eos=True)


def test_worker_registers_before_it_imports_mlx() -> None:
    """Register arrives while the engine is still being imported, and pings are answered then."""
    with ScriptedSupervisor() as supervisor:
        worker = supervisor.start()
        register = supervisor.register()
        assert (register.worker, register.epoch, register.pid) == ("w", EPOCH, worker.pid)
        assert "engine_ready" not in supervisor.log
        assert supervisor.ping().n == 1


def test_worker_reports_load_progress(folder: Path, shared: ScriptedSupervisor) -> None:
    """A load tells its stages as it goes, then what it found; an unload is answered."""
    shared.send(Load(epoch=EPOCH, model="second"), body_of(folder, draft=None))
    progress = shared.expect(Progress)
    assert (progress.model, progress.total > 0) == ("second", True)
    shared.receive_until(lambda: "model_loaded model=second" in shared.log)
    shared.send(Unload(epoch=EPOCH, model="second"))
    assert shared.expect(Unloaded).model == "second"


def test_worker_answers(shared: ScriptedSupervisor) -> None:
    """A request yields gapless chunks and a Done that agrees with them."""
    answers = shared.end_of(shared.assign("m", asking()))
    assert answers.done is not None
    assert answers.done.generated_tokens == len(answers.tokens) == 12
    assert (answers.done.engine, answers.done.finish_reason) == ("dflash", "length")
    assert (answers.done.queued_ms, answers.done.load_ms) == (3, 4)
    assert answers.done.ttft_ms > 0
    assert shared.worker is not None
    assert answers.done.worker_pid == shared.worker.pid


def test_worker_interleaves_requests(shared: ScriptedSupervisor) -> None:
    """Two requests run at the same time, and each answers as it would alone."""
    first, second = asking(max_tokens=40), asking("for item in range", max_tokens=40)
    alone = [shared.end_of(shared.assign("m", body)).tokens for body in (first, second)]
    shared.messages.clear()
    ids = [shared.assign("m", body) for body in (first, second)]
    together = [shared.end_of(id).tokens for id in ids]
    assert together == alone
    order = [id for message in shared.messages if (id := getattr(message.header, "id", None))]
    changes = sum(a != b for a, b in pairwise(order))
    assert changes > 10


def test_worker_cancels_during_long_prefill(shared: ScriptedSupervisor) -> None:
    """A cancel in the middle of a long prompt ends the request within a second."""
    id = shared.assign("m", LONG_PROMPT)
    shared.until_steps(20)
    shared.cancel(id)
    answers = shared.end_of(id, limit_s=1.0)
    assert answers.failed is not None
    assert answers.failed.code is ErrorCode.cancelled
    assert not answers.chunks


def test_worker_decodes_beside_long_prefill(shared: ScriptedSupervisor) -> None:
    """A short request that arrives during another's long prefill is answered long before it."""
    long = shared.assign("m", LONG_PROMPT)
    short = shared.end_of(shared.assign("m", asking()))
    assert short.done is not None
    assert not shared.answers[long].ended
    shared.cancel(long)
    shared.end_of(long)


def test_worker_stop_string_ends_work(shared: ScriptedSupervisor) -> None:
    """A stop string ends the engine's work at once, and is not part of the text."""
    whole = shared.end_of(shared.assign("m", asking(max_tokens=64))).text
    stop = next(c for c in whole[8:] if c.isascii() and c.isprintable())
    body = asking(max_tokens=2000, stop=(stop,))
    answers = shared.end_of(shared.assign("m", body))
    assert answers.done is not None
    assert (answers.done.finish_reason, answers.done.stop_string) == ("stop", stop)
    assert answers.text == whole[: whole.index(stop)]
    assert answers.done.generated_tokens <= 64


def test_worker_holds_without_credit(shared: ScriptedSupervisor) -> None:
    """With credit for three chunks exactly three come; with more, the rest follow."""
    id = shared.assign("m", asking(max_tokens=30), credit=3)
    other = shared.end_of(shared.assign("m", asking(max_tokens=60)))
    assert other.done is not None
    assert len(shared.answers[id].chunks) == 3
    shared.add_credit(id, 60)
    answers = shared.end_of(id)
    assert answers.done is not None
    assert len(answers.tokens) == 30


def test_worker_deadline(shared: ScriptedSupervisor) -> None:
    """A request whose deadline passes in its prefill fails with that code."""
    answers = shared.end_of(shared.assign("m", LONG_PROMPT, deadline_ms=200))
    assert answers.failed is not None
    assert answers.failed.code is ErrorCode.deadline


def test_worker_load_failure_leaves_it_usable(folder: Path, shared: ScriptedSupervisor) -> None:
    """A load that fails says why, leaves no model, and the worker goes on."""
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text("{")
    for target, name in ((folder / "nowhere", "x"), (folder / "broken", "y")):
        shared.send(Load(epoch=EPOCH, model=name), LoadBody(target=str(target)))
        failure = shared.expect(LoadFailed)
        assert failure.model == name
        assert failure.code in (ErrorCode.not_found, ErrorCode.load_failed)
        assert failure.message
    refused = shared.end_of(shared.assign("x", asking()))
    assert refused.failed is not None
    assert refused.failed.code is ErrorCode.not_found
    assert shared.end_of(shared.assign("m", asking())).done is not None


def test_worker_bad_requests_fail_alone(shared: ScriptedSupervisor) -> None:
    """A body that cannot be read, or does not fit, fails its own request with bad_request."""
    good = shared.assign("m", asking(max_tokens=30))
    for body in (b"\xc1", encode(Ping(epoch=1, n=1))[1]):
        id = bytes(15) + body[:1]
        frames = encode(Assign(id=id, epoch=EPOCH, model="m", credit=8), body)
        shared.send_frames(frames)
        failure = shared.expect(Failed)
        assert failure.id == id
        assert failure.code in (ErrorCode.bad_request, ErrorCode.protocol)
    too_long = shared.end_of(shared.assign("m", GenerateBody(tokens=(5,) * 200_001)))
    assert too_long.failed is not None
    assert too_long.failed.code is ErrorCode.bad_request
    assert shared.end_of(good).done is not None


def test_worker_survives_hostile_frames(shared: ScriptedSupervisor) -> None:
    """Frames that mean nothing are dropped and logged; the worker goes on."""
    signature, header, _ = encode(Ping(epoch=EPOCH, n=1))
    for frames in (
        [b""],
        [b"GET / HTTP/1.1\r\n"],
        [signature],
        [signature, b"\xff" * 100, b""],
        [signature, b"\x81\xa4kind\xa5bogus", b""],
        [signature, header, b"unexpected"],
        [signature, header, b"", b""],
        [signature[:-1] + b"\x63", header, b""],
        [signature, b"\x91" * 5000, b""],
    ):
        shared.send_frames(frames)
    shared.send(Ping(epoch=EPOCH + 1, n=5))
    shared.send(Ping(epoch=EPOCH, n=6))
    assert shared.expect(Pong).n == 6
    assert "message_refused" in shared.log


def test_worker_exits_on_stop(folder: Path) -> None:
    """Stop in the middle of a request fails it, and the exit status is 0."""
    with ScriptedSupervisor() as supervisor:
        supervisor.start()
        supervisor.register()
        supervisor.load("m", body_of(folder, prefill_chunk_tokens=16))
        id = supervisor.assign("m", LONG_PROMPT)
        supervisor.until_steps(5)
        supervisor.send(Stop(epoch=EPOCH))
        answers = supervisor.end_of(id, limit_s=5)
        assert answers.failed is not None
        assert answers.failed.code is ErrorCode.shutting_down
        assert supervisor.exit_status(5) == 0


def test_worker_exits_on_sigterm_while_importing() -> None:
    """SIGTERM before the engine is up is an orderly exit, too; SIGINT is not ours."""
    with ScriptedSupervisor() as supervisor:
        supervisor.start()
        supervisor.register()
        supervisor.signal(signal.SIGINT)
        supervisor.ping()
        supervisor.signal(signal.SIGTERM)
        assert supervisor.exit_status(10) == 0


def test_worker_exits_on_sigterm_in_prefill(folder: Path) -> None:
    """SIGTERM in the middle of one long step is not kept waiting by it; status 0."""
    with ScriptedSupervisor() as supervisor:
        supervisor.start()
        supervisor.register()
        supervisor.load("m", body_of(folder, prefill_chunk_tokens=4096))
        supervisor.assign("m", LONG_PROMPT)
        supervisor.until_steps(0)
        supervisor.signal(signal.SIGTERM)
        assert supervisor.exit_status(5) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DFLASHD_WORKERS", ""),
        ("DFLASHD_WORKERS", "tcp://127.0.0.1:1"),
        ("DFLASHD_WORKER", "../x"),
        ("DFLASHD_EPOCH", "0"),
        ("DFLASHD_SECRET", "zz"),
        ("DFLASHD_SUPERVISOR_PID", "-1"),
    ],
)
def test_worker_refuses_a_wrong_environment(name: str, value: str) -> None:
    """A wrong environment is exit status 78 and a line that names the variable, not the secret."""
    with ScriptedSupervisor() as supervisor:
        supervisor.start(**{name: value})
        assert supervisor.exit_status() == 78
        assert name in supervisor.log
        assert supervisor.secret.hex() not in supervisor.log


def test_restarted_worker_hits_its_disk(folder: Path, tmp_path: Path) -> None:
    """What one worker process computed, the next one takes from disk; both give the same text."""
    cache = CacheSettings(disk_bytes=10**8, disk_dir=str(tmp_path / "l2"))
    asked = asking("the quick brown fox jumps over the lazy dog and then " * 3)
    stats: list[DoneBody] = []
    texts: list[str] = []
    for _ in range(2):
        with ScriptedSupervisor() as supervisor:
            worker = supervisor.start()
            supervisor.register()
            supervisor.load("m", body_of(folder, cache=cache))
            answers = supervisor.end_of(supervisor.assign("m", asked))
            assert answers.done is not None
            texts.append(answers.text)
            stats.append(answers.done)
            supervisor.send(ReadCache(id=b"q" * 16, model="m"))
            state = supervisor.expect(CacheState)
            assert state.id == b"q" * 16
            supervisor.send(Stop(epoch=EPOCH))
            assert worker.wait(20) == 0
    assert [done.cache_hit for done in stats] == ["miss", "l2_exact"]
    assert stats[1].cached_tokens == stats[1].prompt_tokens
    assert texts[0] == texts[1] != ""


def test_backends_of_another_package(folder: Path, tmp_path: Path) -> None:
    """Two backends clash in one worker: the second is refused as a conflict, the first serves."""
    site = install(tmp_path / "site")
    with ScriptedSupervisor() as supervisor:
        supervisor.start(PYTHONPATH=str(site))
        supervisor.register()
        loaded = supervisor.load("first", body_of(folder, backend="field-alpha"))
        assert loaded.model == "first"
        supervisor.send(Load(epoch=EPOCH, model="second"), body_of(folder, backend="field-beta"))
        refused = supervisor.expect(LoadFailed)
        assert (refused.model, refused.code) == ("second", ErrorCode.hook_conflict)
        assert "field-alpha for model first" in refused.message
        supervisor.send(Load(epoch=EPOCH, model="third"), body_of(folder, backend="nowhere"))
        refused = supervisor.expect(LoadFailed)
        assert (refused.model, refused.code) == ("third", ErrorCode.unsupported)
        assert "field-alpha" in refused.message
        done = supervisor.end_of(supervisor.assign("first", asking())).done
        assert done is not None
        assert (done.generated_tokens, done.engine_reason) == (12, "attention of our own")
