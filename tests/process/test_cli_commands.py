"""``dflashctl`` and ``dflashd`` as a person or a script uses them: output, exit status, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .daemon_process import DaemonProcess, wait_for

pytestmark = pytest.mark.slow

MakeDaemon = Callable[..., DaemonProcess]
CTL = (sys.executable, "-m", "dflashd.supervisor.cli")


def ctl(daemon: DaemonProcess, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [*CTL, "--runtime-dir", str(daemon.runtime_dir), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


def start(daemon: DaemonProcess, *arguments: str) -> subprocess.Popen[str]:
    """Start one command."""
    return subprocess.Popen(
        [*CTL, "--runtime-dir", str(daemon.runtime_dir), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_spawn_status_retire_shutdown(make_daemon: MakeDaemon) -> None:
    """A model is loaded with progress, seen, unloaded; the daemon stops and its place is free."""
    daemon = make_daemon({"a": {"load_s": 0.5}})
    spawned = ctl(daemon, "spawn", "a")
    assert spawned.returncode == 0
    assert "a is ready" in spawned.stdout
    assert "weights" in spawned.stderr
    table = ctl(daemon, "status").stdout.splitlines()
    assert table[1].split()[:4] == ["MODEL", "STATE", "ENGINE", "WORKER"]
    assert table[2].split()[:3] == ["a", "ready", "dflash"]
    state = json.loads(ctl(daemon, "status", "--json").stdout)
    assert state["workers"][0]["retry_in_s"] is None
    assert state["models"][0]["loaded"]["engine"] == "dflash"
    assert json.loads(ctl(daemon, "models", "--json").stdout)[0]["target"] == "fake"
    assert ctl(daemon, "retire", "a").stdout == "a is unloaded\n"
    assert "stopped" in ctl(daemon, "models").stdout
    assert ctl(daemon, "shutdown").returncode == 0
    assert list(daemon.runtime_dir.iterdir()) == []
    assert daemon.wait() == 0


def test_status_shows_who_shares_a_worker(make_daemon: MakeDaemon) -> None:
    """Of a group's models those that are loaded show its process, and its memory once."""
    group = 'group = "g"'
    daemon = make_daemon({"a": {}, "b": {}, "c": {}}, {"a": group, "b": group, "c": group})
    ctl(daemon, "spawn", "a")
    ctl(daemon, "spawn", "c")
    head, *rows = ctl(daemon, "status").stdout.splitlines()[1:]
    cells = [dict(zip(head.split(), row.replace(" MB", "MB").split(), strict=True)) for row in rows]
    state = json.loads(ctl(daemon, "status", "--json").stdout)
    (worker,) = state["workers"]
    pid, memory = str(worker["pid"]), f"{worker['memory_bytes'] / 1e6:.0f}MB"
    shown = {row["MODEL"]: (row["WORKER"], row["PID"], row["MEMORY"]) for row in cells}
    assert shown == {"a": ("g", pid, memory), "b": ("g", "-", "-"), "c": ("g", pid, "=a")}
    assert (worker["group"], worker["models"]) == ("g", ["a", "b", "c"])
    assert [model["pid"] for model in state["models"]] == [worker["pid"], None, worker["pid"]]
    top = json.loads(ctl(daemon, "top", "--json", "-n", "1").stdout.splitlines()[0])
    assert [(m["worker"], m["pid"]) for m in top["models"]][1] == ("g", None)
    assert [m["memory_bytes"] > 0 for m in top["models"]] == [True, False, True]


def test_status_shows_what_is_pinned(make_daemon: MakeDaemon) -> None:
    """Who wonders why a model stays sees it, until it is unpinned."""
    daemon = make_daemon({"a": {}, "b": {}})
    assert ctl(daemon, "pin", "b").returncode == 0
    assert "pinned: b\n" in ctl(daemon, "status").stdout
    assert ctl(daemon, "unpin", "b").returncode == 0
    assert "pinned" not in ctl(daemon, "status").stdout


def test_a_key_file_that_cannot_be_written_is_not_there(tmp_path: Path) -> None:
    """Half a key would be in the way of the next try, once there is room on the disk."""
    (file := tmp_path / "d.toml").write_text('[daemon]\nstate_dir = "state"\n')
    keys = " ".join((*CTL, "keys"))
    script = f"{keys} list --config {file} && ulimit -f 0 && exec {keys} new x --config {file}"
    done = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 5, done.stderr
    assert "x.key cannot be written" in done.stderr
    assert not (tmp_path / "x.key").exists()


def test_generate_streams_or_prints_the_whole(shared_daemon: DaemonProcess) -> None:
    """The text is the same streamed, whole, and as JSON with statistics."""
    text = "word " * 5
    assert ctl(shared_daemon, "generate", "a", "hi").stdout == text + "\n"
    assert ctl(shared_daemon, "generate", "a", "hi", "--no-stream").stdout == text + "\n"
    assert ctl(shared_daemon, "generate", "a", "-", "--stop", "x", "--stop", "y", input="hi").stdout
    answer = json.loads(ctl(shared_daemon, "generate", "a", "hi", "--json").stdout)
    assert answer["text"] == text
    assert answer["tokens"] == [0, 1, 2, 3, 4]
    assert answer["stats"]["engine_reason"] == ""


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("generate", "b", "x"), 4, "no model b is configured"),
        (("spawn", "b"), 4, "no model b is configured"),
        (("generate", "a", "x", "--temperature", "-1"), 5, "temperature"),
        (("generate", "broken", "x"), 1, "load_failed"),
        (("generate", "a"), 2, "PROMPT"),
        (("stauts",), 2, "no command is called stauts; did you mean status?"),
        ((), 2, "a command is missing"),
    ],
)
def test_errors_are_one_sentence_with_a_stable_status(
    shared_daemon: DaemonProcess, arguments: tuple[str, ...], status: int, words: str
) -> None:
    """What goes wrong is said on stderr without a traceback, and the status tells the kind."""
    result = ctl(shared_daemon, *arguments)
    assert result.returncode == status
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_no_daemon_is_said_at_once(tmp_path: Path) -> None:
    """Without a daemon the sentence names the socket and the command that starts one."""
    result = subprocess.run(
        [*CTL, "--runtime-dir", str(tmp_path), "status"],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    assert result.returncode == 3
    assert "dflashd serve" in result.stderr


def test_a_key_is_for_an_address(tmp_path: Path) -> None:
    """A key file that this machine's daemon has no use for is refused, not passed over."""
    command = [*CTL, "--key", str(tmp_path / "any.key"), "status"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 5
    assert "address" in result.stderr


def test_ctrl_c_cancels_in_the_worker_and_exits_130(make_daemon: MakeDaemon) -> None:
    """Ctrl-C during a generate stops the request in the worker, not only in the terminal."""
    daemon = make_daemon({"a": {"chunks": 100_000}})
    process = start(daemon, "generate", "a", "x")
    assert process.stdout
    assert process.stdout.read(10) == "word word "
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "Traceback" not in errors
    wait_for("it is idle", lambda: daemon.status().models[0].state == "ready")
    assert daemon.status().counters["cancels"] == 1


def test_ctrl_c_while_the_model_loads(make_daemon: MakeDaemon) -> None:
    """Ctrl-C while waiting for a load ends the wait and the request."""
    daemon = make_daemon({"a": {"load_s": 60.0}})
    process = start(daemon, "generate", "a", "x")
    wait_for("it waits", lambda: daemon.status().models[0].queued == 1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 130
    assert daemon.status().models[0].queued == 0


def test_chat_keeps_the_conversation_and_ctrl_c_stops_only_the_answer(
    make_daemon: MakeDaemon,
) -> None:
    """Ctrl-C in an answer stops that answer; the conversation goes on until /exit."""
    daemon = make_daemon({"a": {"chunks": 500}})
    process = start(daemon, "chat", "a")
    assert process.stdin
    assert process.stdout
    process.stdin.write("hello\n")
    process.stdin.flush()
    assert process.stdout.read(10) == "word word "
    process.send_signal(signal.SIGINT)
    wait_for("it is stopped", lambda: daemon.status().counters.get("cancels") == 1)
    output, errors = process.communicate("and again\n/exit\nnever said\n", timeout=60)
    assert process.returncode == 0
    assert "(stopped)" in errors
    assert output.count("word ") >= 500
    assert daemon.status().counters["generates"] == 2


def test_chat_sends_what_was_said_before(make_daemon: MakeDaemon) -> None:
    """Every turn, the model's own included, reaches it again with the next one."""
    daemon = make_daemon({"a": {"chunks": 1, "echo": True}})
    process = start(daemon, "chat", "a", "--system", "be brief")
    output, _ = process.communicate("hello\nmore\n", timeout=60)
    first, second = output.splitlines()
    assert first == "system=be brief|user=hello"
    assert second == f"{first}|assistant={first}|user=more"


def test_a_script_learns_that_an_answer_failed(make_daemon: MakeDaemon) -> None:
    """Where nobody is there to ask again, the first answer that fails ends the conversation."""
    daemon = make_daemon({"a": {"chunks": 9, "fail_after": 2}})
    process = start(daemon, "chat", "a")
    output, errors = process.communicate("hello\nmore\n", timeout=60)
    assert process.returncode == 1
    assert output.startswith("word word ")
    assert errors.count("dflashctl: ") == 1
    assert daemon.status().counters["generates"] == 1


def test_reader_that_leaves_early_is_no_traceback(make_daemon: MakeDaemon) -> None:
    """``dflashctl generate … | head`` ends quietly, and the request is stopped."""
    daemon = make_daemon({"a": {"chunks": 100_000}})
    process = start(daemon, "generate", "a", "x")
    assert process.stdout
    assert process.stderr
    process.stdout.read(5)
    process.stdout.close()
    assert process.wait(10) == 1
    assert "Traceback" not in (errors := process.stderr.read())
    assert "Error" not in errors
    process.stderr.close()
    wait_for("it is stopped", lambda: daemon.status().models[0].active == 0)


def test_a_daemon_that_died_is_not_to_be_asked_why(make_daemon: MakeDaemon) -> None:
    """Its logs and events are named only where somebody is left to show them."""
    daemon = make_daemon({"a": {"chunks": 100_000, "chunk_s": 0.01}})
    process = start(daemon, "generate", "a", "x")
    assert process.stdout
    process.stdout.read(5)
    daemon.signal(signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 75
    said, advice = errors.splitlines()[-2:]
    assert "closed the connection" in said
    assert "dflashctl doctor" in advice


def test_interrupted_pull_and_doctor_are_other_processes() -> None:
    """``pull`` and ``doctor`` pass their arguments, output and status through."""
    result = subprocess.run(
        [*CTL, "pull", "no-such-model"], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 1
    assert "no-such-model" in result.stderr
    listed = subprocess.run(
        [*CTL, "pull", "--list"], capture_output=True, text=True, timeout=60, check=False
    )
    assert listed.returncode == 0
    assert "smollm2-135m" in listed.stdout


def test_serve_refuses_a_bad_configuration(tmp_path: Path) -> None:
    """``dflashd serve`` with a misspelt key exits 78 and names key, section and neighbour."""
    path = tmp_path / "x.toml"
    path.write_text("[models.a]\ntarget='t'\ndrat='d'\n")
    result = subprocess.run(
        [sys.executable, "-m", "dflashd.supervisor.serve", "serve", "--config", str(path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert result.returncode == 78
    assert "line 3: [models.a] drat is not a known key; did you mean draft?" in result.stderr


def test_supervisor_and_cli_import_no_model_code() -> None:
    """Daemon and command line import none of mlx, mlx_lm, transformers, numpy, nor the worker."""
    code = """
import sys, pkgutil, importlib
import dflashd.supervisor as package
for found in pkgutil.walk_packages(package.__path__, "dflashd.supervisor."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
import dflashd.protocol.sync
banned = ("mlx", "mlx_lm", "transformers", "numpy", "huggingface_hub", "dflashd.worker")
print([name for name in banned if name in sys.modules])
"""
    result = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert result.stdout.strip() == "[]"


def test_cache_is_shown_and_emptied(make_daemon: MakeDaemon) -> None:
    """Loaded models' caches are listed, one in full or as JSON, and emptied; looking loads none."""
    daemon = make_daemon({"a": {}, "b": {}})
    assert ctl(daemon, "cache").stdout == "no model is loaded, so no cache is open\n"
    unloaded = ctl(daemon, "cache", "a")
    assert unloaded.returncode == 4
    assert "a is not loaded" in unloaded.stderr
    assert ctl(daemon, "cache", "nobody").returncode == 4
    assert ctl(daemon, "cache", "show", "a").returncode == 2
    assert ctl(daemon, "spawn", "a").returncode == 0
    table = ctl(daemon, "cache").stdout.splitlines()
    assert table[0].split()[:3] == ["MODEL", "STATE", "ENTRIES"]
    assert [line.split()[:3] for line in table[1:]] == [["a", "open", "3"]]
    assert "hits         l1_prefix 2" in ctl(daemon, "cache", "a").stdout
    (row,) = json.loads(ctl(daemon, "cache", "--json").stdout)
    assert (row["model"], row["ram_entries"], row["misses"]) == ("a", 3, {})
    assert ctl(daemon, "cache", "clear", "a").stdout == "the cache of a is empty\n"
    assert json.loads(ctl(daemon, "cache", "a", "--json").stdout)["ram_entries"] == 0


def test_cache_question_fails_when_its_worker_dies(make_daemon: MakeDaemon) -> None:
    """A worker that never answers and then dies ends the question with worker_lost."""
    daemon = make_daemon({"a": {"deaf": True}}, pong_timeout_s=5)
    assert ctl(daemon, "spawn", "a").returncode == 0
    asked = ctl(daemon, "cache", "a")
    assert asked.returncode == 75
    assert "does not answer" in asked.stderr or "worker" in asked.stderr


def test_output_that_cannot_be_written_is_one_sentence(shared_daemon: DaemonProcess) -> None:
    """A full disk behind the output: a sentence and a status, not a traceback."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*CTL, "--runtime-dir", str(shared_daemon.runtime_dir), "status"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert "cannot be written" in ended.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_outputs_change_no_status(shared_daemon: DaemonProcess, closed: str) -> None:
    """A caller that closed our outputs, as some services do, still learns how it ended."""
    line = " ".join(
        [*CTL, "--runtime-dir", str(shared_daemon.runtime_dir), "generate", "a", "x", closed]
    )
    assert subprocess.run(["sh", "-c", line], timeout=60, check=False).returncode == 0


def test_input_that_is_no_text_is_refused(shared_daemon: DaemonProcess) -> None:
    """Bytes that are no characters, or no input at all: a sentence, not a traceback."""
    line = " ".join([*CTL, "--runtime-dir", str(shared_daemon.runtime_dir)])
    utf8 = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    for command, status in (
        (f"printf '\\377' | {line} generate a -", 5),
        (f"printf '\\377' | {line} chat a", 5),
        (f"{line} chat a <&-", 0),
        (f"{line} generate a - <&-", 0),
    ):
        ended = subprocess.run(
            ["sh", "-c", command], stderr=subprocess.PIPE, timeout=60, env=utf8, check=False
        )
        told = ended.stderr.decode()
        assert "Traceback" not in told
        assert ended.returncode == status, told
        assert ("UTF-8" in told) is (status == 5)


def test_text_is_printed_in_any_encoding(make_daemon: MakeDaemon) -> None:
    """Characters a terminal does not have are replaced; the answer goes on."""
    daemon = make_daemon({"a": {"text": "Grüße"}})
    ended = ctl(daemon, "generate", "a", "x", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (ended.returncode, ended.stdout[:5]) == (0, "Gr??e"), ended.stderr
