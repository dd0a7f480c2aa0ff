"""A worker that fetches a model from a hub which stands still: nobody else notices."""

from __future__ import annotations

import signal
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.protocol.messages import (
    GenerateBody,
    Load,
    LoadBody,
    Loaded,
    LoadFailed,
    Progress,
    Unload,
    Unloaded,
)
from dflashd.worker.checkpoints.fetch import fetch
from dflashd.worker.errand import Errand

from ..tiny import make_target
from ..unit.scripted_hub import REPOSITORY, Stall, scripted_hub
from .scripted_supervisor import EPOCH, ScriptedSupervisor, is_gone, wait_until

pytestmark = pytest.mark.slow

ASKED = GenerateBody(prompt="the quick brown fox", max_tokens=12, ignore_eos=True)
FROM_HUB = LoadBody(target=REPOSITORY)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target(tmp_path_factory.mktemp("tiny") / "t")


class Hub:
    """A hub that falls silent in the middle of the weights, and an empty cache."""

    def __init__(self, address: str, home: Path, stall: Stall) -> None:
        self.stall = stall
        self.environment = {"HF_HOME": str(home), "HF_ENDPOINT": address}


@pytest.fixture
def hub(folder: Path, tmp_path: Path) -> Generator[Hub]:
    stall = Stall("model.safetensors")
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    with scripted_hub(files, stall) as address:
        yield Hub(address, tmp_path, stall)


@pytest.fixture
def supervisor(folder: Path, hub: Hub) -> Generator[ScriptedSupervisor]:
    """A worker that serves model ``m`` and is in the middle of fetching ``h``."""
    with ScriptedSupervisor() as supervisor:
        supervisor.start(**hub.environment)
        supervisor.register()
        supervisor.load("m", LoadBody(target=str(folder)))
        supervisor.send(Load(epoch=EPOCH, model="h"), FROM_HUB)
        until_half(supervisor)
        yield supervisor


def until_half(supervisor: ScriptedSupervisor) -> None:
    """Receive until a part of the weights has come."""
    progress = supervisor.expect(Progress)
    while not progress.done or progress.unit != "bytes":
        progress = supervisor.expect(Progress)
    assert (progress.model, progress.stage) == ("h", "download")


def children(supervisor: ScriptedSupervisor) -> list[psutil.Process]:
    assert supervisor.worker is not None
    return psutil.Process(supervisor.worker.pid).children(recursive=True)


def ended(processes: list[psutil.Process]) -> bool:
    return all(is_gone(process.pid) for process in processes)


def test_worker_serves_others_while_it_fetches(
    supervisor: ScriptedSupervisor, hub: Hub, folder: Path
) -> None:
    """Beside a download that stands still requests are answered and other models come and go; taken
    back it is gone at once, and asked for again it goes on where it was.
    """
    fetching = children(supervisor)
    assert fetching
    alone = supervisor.end_of(supervisor.assign("m", ASKED))
    assert alone.done is not None
    supervisor.load("again", LoadBody(target=str(folder)))
    supervisor.send(Unload(epoch=EPOCH, model="again"))
    assert supervisor.expect(Unloaded).model == "again"
    assert supervisor.ping().memory_bytes > 0
    assert not ended(fetching)
    supervisor.send(Unload(epoch=EPOCH, model="h"))
    failed = supervisor.expect(LoadFailed)
    assert (failed.model, failed.code) == ("h", ErrorCode.shutting_down)
    assert supervisor.expect(Unloaded).model == "h"
    wait_until(lambda: ended(fetching), 5.0, "the child that fetched has ended")
    assert supervisor.end_of(supervisor.assign("m", ASKED)).tokens == alone.tokens
    hub.stall.go.set()
    supervisor.send(Load(epoch=EPOCH, model="h"), FROM_HUB)
    assert supervisor.expect(Loaded).model == "h"
    assert supervisor.end_of(supervisor.assign("h", ASKED)).tokens == alone.tokens
    assert children(supervisor) == []


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_worker_that_goes_takes_its_download_along(
    supervisor: ScriptedSupervisor, how: str
) -> None:
    """However a worker ends, nothing of a download that stands still is left, and it is not waited
    for.
    """
    fetching = children(supervisor)
    supervisor.signal(signal.SIGTERM if how == "terminate" else signal.SIGKILL)
    status = supervisor.exit_status(10.0)
    assert status == (-signal.SIGKILL if how == "kill" else 0)
    wait_until(lambda: ended(fetching), 5.0, "the child that fetched has ended")


def test_fetch_does_not_wait_for_ever(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A download without progress is given up with a sentence, and its process with it."""
    for name, value in hub.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "60")
    told: list[int] = []
    errand = Errand(lambda stage, done, total, unit: told.append(done))
    with pytest.raises(DflashError, match="made no progress for 3 s") as caught:
        fetch(REPOSITORY, errand, stall_s=3.0)
    assert caught.value.code is ErrorCode.load_failed
    assert max(told) > 0
    assert psutil.Process().children() == []


def test_fetch_waits_for_another_of_the_same_model(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two models on one target that is not here yet: the second load tells that it waits, longer
    than a download may stand still, and then has the files that the first one brought.
    """
    for name, value in hub.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "60")
    waited_s: list[int] = []

    def watch(stage: str, done: int, total: int, unit: str) -> None:
        if stage == "wait for another pull":
            waited_s.append(done)
            if done >= 4:
                hub.stall.go.set()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(fetch, REPOSITORY, Errand(lambda *_: None))
        assert hub.stall.reached.wait(30)
        second = pool.submit(fetch, REPOSITORY, Errand(watch), stall_s=3.0)
        try:
            fetched = second.result(30)
        finally:
            hub.stall.go.set()
        assert fetched == first.result(30)
    assert waited_s[-1] >= 4


def test_fetch_whose_process_dies_says_so(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """When somebody kills the process that fetches, the load fails and says what to do."""
    for name, value in hub.environment.items():
        monkeypatch.setenv(name, value)

    def kill(stage: str, done: int, total: int, unit: str) -> None:
        if done:
            for child in psutil.Process().children():
                child.kill()

    with pytest.raises(DflashError, match="ended without a word; see the log") as caught:
        fetch(REPOSITORY, Errand(kill))
    assert caught.value.code is ErrorCode.load_failed


def test_fetch_imports_nothing_of_the_working_directory(
    hub: Hub, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file there that is called like a library of ours is not run."""
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / "msgspec.py").write_text("raise SystemExit('this is not ours')\n")
    for name, value in hub.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(elsewhere)
    hub.stall.go.set()
    fetched = fetch(REPOSITORY, Errand(lambda *_: None))
    assert (fetched / "config.json").read_bytes() == (folder / "config.json").read_bytes()
