"""``dflashctl`` on a terminal: colours, the live view, completion."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest

from .daemon_process import DaemonProcess, wait_for
from .terminal import Terminal
from .test_cli_commands import CTL, ctl

pytestmark = pytest.mark.slow

MakeDaemon = Callable[..., DaemonProcess]
ALTERNATE, NORMAL = "\x1b[?1049h", "\x1b[?1049l"
GREEN = "\x1b[32mready"


def on_terminal(daemon: DaemonProcess, *arguments: str, **environment: str) -> Terminal:
    """One command on a terminal of its own."""
    command = [*CTL, "--runtime-dir", str(daemon.runtime_dir), *arguments]
    return Terminal(command, **environment)


@contextmanager
def reader(daemon: DaemonProcess) -> Generator[None]:
    """Somebody who reads an endless answer as it comes."""
    command = [*CTL, "--runtime-dir", str(daemon.runtime_dir), "generate", "a", "x"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_a_table_has_colours_on_a_terminal_only(shared_daemon: DaemonProcess) -> None:
    """States are coloured for eyes; NO_COLOR, a dumb terminal and a pipe have none."""
    assert ctl(shared_daemon, "spawn", "a").returncode == 0
    for environment, codes in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        with on_terminal(shared_daemon, "status", **environment) as terminal:
            assert terminal.wait() == 0
        assert "MODEL" in terminal.screen
        assert (GREEN in terminal.screen) is codes, terminal.screen
        assert ("\x1b[3" in terminal.screen) is codes, terminal.screen
    assert "\x1b" not in ctl(shared_daemon, "status").stdout


def test_a_workers_last_words_move_no_cursor(make_daemon: MakeDaemon) -> None:
    """What a worker wrote before it died is shown without its control codes, nor as markup."""
    words = "\x1b]0;title\x07[red]it broke\n"
    daemon = make_daemon({"a": {"exit_at_start": 1, "last_words": words}})
    ctl(daemon, "generate", "a", "x")
    wait_for("it is known", lambda: "it broke" in daemon.status().workers[0].last_lines)
    with on_terminal(daemon, "status") as terminal:
        assert terminal.wait() == 0
    assert "[red]it broke" in terminal.screen
    assert "\x1b]0" not in terminal.screen
    assert "\x07" not in terminal.screen


@pytest.mark.parametrize("leave", ["q", "\x1b", "\x03", "SIGTERM"])
def test_top_leaves_the_terminal_as_it_was(make_daemon: MakeDaemon, leave: str) -> None:
    """The live view goes on by itself, and q, Ctrl-C and a polite signal end it cleanly."""
    daemon = make_daemon({"a": {"chunks": 10_000, "chunk_s": 0.01}})
    with reader(daemon), on_terminal(daemon, "top", "--delay", "0.1") as terminal:
        before = terminal.modes
        screen = terminal.until("busy")
        assert ALTERNATE in screen
        terminal.until(" tokens/s, 1 active")
        if leave == "SIGTERM":
            os.kill(terminal.pid, signal.SIGTERM)
        else:
            terminal.press(leave)
        assert terminal.wait() == (143 if leave == "SIGTERM" else 0), terminal.screen
        if sys.platform == "linux":  # elsewhere the modes are gone with the process
            after = termios.tcgetattr(terminal.fd)
            assert after[3] == before[3]
    assert terminal.screen.rindex(NORMAL) > terminal.screen.rindex(ALTERNATE)
    assert "Traceback" not in terminal.screen


def test_an_arrow_is_no_escape(make_daemon: MakeDaemon) -> None:
    """A key whose code begins like that of Esc does not end the live view."""
    daemon = make_daemon({"a": {}})
    with on_terminal(daemon, "top", "--delay", "0.1") as terminal:
        terminal.until("stopped")
        terminal.press("\x1b[A")
        ctl(daemon, "spawn", "a")
        terminal.until("ready")
        terminal.press("q")
        assert terminal.wait() == 0


def test_an_empty_log_is_said_to_be_empty(make_daemon: MakeDaemon) -> None:
    """A person who sees nothing knows why; in a pipe nothing is said beside the log."""
    daemon = make_daemon({"a": {}})
    with on_terminal(daemon, "logs", "a") as terminal:
        assert terminal.wait() == 0
    assert "the worker of a has written nothing yet" in terminal.screen
    piped = ctl(daemon, "logs", "a")
    assert (piped.returncode, piped.stdout, piped.stderr) == (0, "", "")


def test_progress_stays_on_its_line(make_daemon: MakeDaemon) -> None:
    """What is wider than the terminal is cut: it would not take a second line away again."""
    name = "a-model-with-a-name-that-alone-is-nearly-as-wide-as-a-terminal-is-wide-" + "x" * 50
    daemon = make_daemon({name: {"load_s": 0.5}})
    with on_terminal(daemon, "spawn", name) as terminal:
        assert terminal.wait() == 0
    drawn = [line for line in terminal.screen.split("\r\x1b[K") if "a-model" in line]
    assert drawn
    assert all(len(line) < 120 for line in drawn[:-1]), drawn


def test_an_answer_in_a_file_is_the_answer_alone(shared_daemon: DaemonProcess) -> None:
    """What only a person at a terminal needs does not go where the answers go."""
    file = shared_daemon.home / "said"
    command = " ".join([*CTL, "--runtime-dir", str(shared_daemon.runtime_dir), "chat", "a"])
    with Terminal(["sh", "-c", f"{command} > {file}"]) as terminal:
        terminal.until("/exit leaves")
        terminal.press("hello\n/exit\n")
        assert terminal.wait() == 0
    assert file.read_text().startswith("word ")


def test_errors_move_no_cursor(make_daemon: MakeDaemon) -> None:
    """A sentence that quotes a model's files is shown without control codes."""
    daemon = make_daemon({"a": {"load_error": ["load_failed", "no \x1b]0;title\x07such model"]}})
    with on_terminal(daemon, "spawn", "a") as terminal:
        assert terminal.wait() == 1
    assert "]0;titlesuch model" in terminal.screen
    assert "\x1b]0" not in terminal.screen


@pytest.mark.parametrize("command", [("generate", "a", "x"), ("chat", "a")])
def test_an_error_begins_a_line(make_daemon: MakeDaemon, command: tuple[str, ...]) -> None:
    """What went wrong in the middle of an answer is not glued to the answer's last word."""
    daemon = make_daemon({"a": {"chunks": 9, "fail_after": 2}})
    with on_terminal(daemon, *command) as terminal:
        if command[0] == "chat":
            terminal.until("> ")
            terminal.press("hello\n")
        terminal.until("dflashctl: ")
        if command[0] == "chat":
            terminal.press("/exit\n")
        terminal.wait()
    assert "word word \r\ndflashctl: " in terminal.screen


def test_top_says_when_the_daemon_goes(make_daemon: MakeDaemon) -> None:
    """A daemon that stops ends the view with a sentence on the normal screen."""
    daemon = make_daemon({"a": {}})
    with on_terminal(daemon, "top", "--delay", "0.1") as terminal:
        terminal.until("stopped")
        daemon.signal(signal.SIGTERM)
        assert terminal.wait() != 0
    assert "dflashctl: " in terminal.screen[terminal.screen.rindex(NORMAL) :]
    assert "Traceback" not in terminal.screen


def test_top_in_a_pipe_is_one_frame_with_rates(make_daemon: MakeDaemon) -> None:
    """Without a terminal: one frame as text, or as many JSON objects as are asked for."""
    daemon = make_daemon({"a": {"chunks": 10_000, "chunk_s": 0.01}})
    with reader(daemon):
        wait_for("it computes", lambda: daemon.status().models[0].active)
        shown = ctl(daemon, "top", "--delay", "0.2")
        assert shown.returncode == 0
        assert "\x1b" not in shown.stdout
        assert shown.stdout.count("MODEL") == 1
        assert "load_began worker=a epoch=1 model=a" in shown.stdout
        frames = ctl(daemon, "top", "--delay", "0.2", "--frames", "2", "--json").stdout.splitlines()
        assert len(frames) == 2
        (model,) = json.loads(frames[1])["models"]
        assert model["tokens_per_s"] > 1
        assert model["acceptance_length_tokens"] == 1.0
        assert model["state"] == "busy"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_a_script(shell: str) -> None:
    """The script names our command, and the shell can read it where it is installed."""
    done = subprocess.run(
        [*CTL, "completion", shell], capture_output=True, text=True, timeout=30, check=True
    )
    assert "dflashctl" in done.stdout
    if path := shutil.which(shell):
        subprocess.run([path, "-n"], input=done.stdout, text=True, timeout=30, check=True)


def completed(daemon: DaemonProcess, line: str) -> list[str]:
    """What bash would offer behind ``line``."""
    read, write = os.pipe()
    environment = {
        **os.environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
        "DFLASHD_RUNTIME_DIR": str(daemon.runtime_dir),
    }
    script = 'exec 8>&"$1"; shift; exec "$@" 9>/dev/null'
    subprocess.run(
        ["bash", "-c", script, "-", str(write), *CTL],
        env=environment,
        pass_fds=[write],
        timeout=30,
        check=True,
    )
    os.close(write)
    with os.fdopen(read) as answer:
        return [word.strip() for word in answer.read().split("\n") if word.strip()]


def test_words_are_completed_and_models_are_the_daemons(make_daemon: MakeDaemon) -> None:
    """Commands and options come from the parser, names of models from the daemon that is meant."""
    daemon = make_daemon({"small": {}, "big": {}})
    assert {"status", "top", "bench"} <= set(completed(daemon, "dflashctl "))
    assert completed(daemon, "dflashctl retire --n") == ["--now"]
    assert completed(daemon, "dflashctl spawn s") == ["small"]
    assert {"small", "big"} <= set(completed(daemon, "dflashctl logs "))
    assert completed(daemon, "dflashctl --connect tcp://127.0.0.1:9 spawn s") == []
    daemon.signal(signal.SIGTERM)
    daemon.wait()
    assert completed(daemon, "dflashctl spawn s") == []


def test_bench_finds_the_fastest_block_and_says_why(make_daemon: MakeDaemon) -> None:
    """Plain and every block length side by side; the fake worker is fastest with blocks of 4."""
    daemon = make_daemon({"a": {"chunks": 4, "chunk_s": 0.001}})
    told = ctl(daemon, "bench", "a", "--rounds", "1")
    assert told.returncode == 0, told.stderr
    assert [line.split()[0] for line in told.stdout.splitlines()[1:6]] == [
        *("plain", "2", "4", "8", "16")
    ]
    assert "best: 4" in told.stdout
    assert "set block_tokens = 4 in [models.a]" in told.stdout
    found = json.loads(
        ctl(daemon, "bench", "a", "--rounds", "1", "--blocks", "4,8", "--json").stdout
    )
    assert [one["block_tokens"] for one in found["figures"]] == [1, 4, 8]
    assert found["verdict"]["best_block_tokens"] == 4
    assert found["other_requests"] == 0
    assert found["figures"][1]["over_plain_ratio"] > found["figures"][2]["over_plain_ratio"] > 1


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (("spawn", "a", "--json"), {"model", "state", "seconds"}),
        (("logs", "a", "--json"), {"text", "missed_bytes"}),
        (("retire", "a", "--json"), {"model", "state"}),
        (("pin", "a", "--json"), {"model", "pinned"}),
        (("shutdown", "--json"), {"pid", "state"}),
    ],
)
def test_what_is_done_is_told_as_json_too(
    make_daemon: MakeDaemon, arguments: tuple[str, ...], keys: set[str]
) -> None:
    """Every command has an object for programs."""
    daemon = make_daemon({"a": {"log": "a line\n"}})
    assert ctl(daemon, "spawn", "a").returncode == 0
    done = ctl(daemon, *arguments)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout.splitlines()[0])) == keys


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("generate", "broken", "x"), "dflashctl logs broken"),
        (("spawn", "broken"), "dflashctl logs broken"),
    ],
)
def test_an_error_says_what_to_do_next(
    shared_daemon: DaemonProcess, arguments: tuple[str, ...], advice: str
) -> None:
    """Behind the sentence that says what is wrong stands a command that helps."""
    first, second = ctl(shared_daemon, *arguments).stderr.splitlines()[-2:]
    assert first.startswith("dflashctl: ")
    assert second.startswith("  → ")
    assert advice in second
