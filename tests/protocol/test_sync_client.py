"""What the blocking client promises, from one thread and from many."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dflashd.protocol import Client, DflashError, ErrorCode
from dflashd.protocol.messages import Accepted, Cancel, Event, Generate

from .scripted_daemon import SNAPSHOT, STATS, WAIT_S, ScriptedDaemon


@pytest.fixture
def client(daemon: ScriptedDaemon) -> Generator[Client]:
    """An open client of the scripted daemon."""
    with Client(daemon.endpoints.runtime_dir) as opened:
        yield opened


def test_generation_is_iterated_and_waited_for(client: Client) -> None:
    """Iterating yields every chunk, waiting the whole, and the statistics are there after."""
    generation = client.generate("m", "200")
    assert [chunk.text for chunk in generation] == [f"{n} " for n in range(200)]
    assert generation.stats == STATS
    assert generation.ended
    assert generation.wait().text.endswith("199 ")
    assert client.generate("m", "2").wait().tokens == (0, 0, 1, 1)


def test_everything_else_works_too(client: Client) -> None:
    """Status, spawn with progress, retire and shutdown are there, blocking."""
    events: list[Accepted | Event] = []
    assert client.status() == SNAPSHOT
    client.spawn("m", events.append)
    assert len(events) == 3
    client.retire("m")
    client.shutdown()


def test_errors_are_raised_in_the_caller(client: Client) -> None:
    """A failure in the daemon, or a bad argument, raises DflashError where it was asked."""
    with pytest.raises(DflashError) as failed:
        client.generate("unknown", "x").wait()
    assert failed.value.code is ErrorCode.not_found
    with pytest.raises(DflashError, match="top_p"):
        client.generate("m", "x", top_p=2)
    with pytest.raises(TypeError, match="topp"):
        client.generate("m", "x", topp=2)  # pyright: ignore[reportCallIssue]


def test_many_threads_share_one_client(client: Client) -> None:
    """Sixteen threads with a generation each get their own chunks, in order."""

    def one(n: int) -> bool:
        texts = [chunk.text for chunk in client.generate("m", str(100 + n))]
        return texts == [f"{i} " for i in range(100 + n)] and client.status() == SNAPSHOT

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(one, range(32)))


def test_leaving_a_loop_cancels(client: Client, daemon: ScriptedDaemon) -> None:
    """Breaking out of a loop, an exception in it, or a context left cancels in the daemon."""
    for _ in client.generate("m", "forever"):
        break
    daemon.expect(Cancel, 1)

    def read() -> None:
        for chunk in client.generate("m", "forever"):
            raise ZeroDivisionError(chunk.text)

    with pytest.raises(ZeroDivisionError):
        read()
    daemon.expect(Cancel, 2)
    with client.generate("m", "forever"):
        pass
    daemon.expect(Cancel, 3)
    client.generate("m", "forever")
    gc.collect()
    daemon.expect(Cancel, 4)


def test_cancel_from_another_thread(client: Client, daemon: ScriptedDaemon) -> None:
    """A thread may cancel what another is waiting for; the waiter gets 'cancelled'."""
    generation = client.generate("silent-to-others", "forever")
    raised: list[ErrorCode] = []

    def wait() -> None:
        try:
            generation.wait()
        except DflashError as error:
            raised.append(error.code)

    waiter = threading.Thread(target=wait)
    waiter.start()
    daemon.expect(Generate)
    generation.cancel()
    waiter.join(WAIT_S)
    assert raised == [ErrorCode.cancelled]


def test_closing_frees_every_waiter(daemon: ScriptedDaemon) -> None:
    """Closing the client ends what other threads wait for, and leaves no thread behind."""
    client = Client(daemon.endpoints.runtime_dir)
    raised: list[ErrorCode] = []

    def wait() -> None:
        try:
            client.generate("silent", "x").wait()
        except DflashError as error:
            raised.append(error.code)

    waiters = [threading.Thread(target=wait) for _ in range(4)]
    for waiter in waiters:
        waiter.start()
    daemon.expect(Generate, 4)
    client.close()
    client.close()
    for waiter in waiters:
        waiter.join(WAIT_S)
    assert raised == [ErrorCode.cancelled] * 4
    assert not [thread for thread in threading.enumerate() if thread.name == "dflashd-client"]


def test_client_may_be_dropped(daemon: ScriptedDaemon) -> None:
    """A client without a context closes itself when it is dropped, but not while in use."""
    texts = [chunk.text for chunk in Client(daemon.endpoints.runtime_dir).generate("m", "100")]
    assert len(texts) == 100
    gc.collect()
    assert not [thread for thread in threading.enumerate() if thread.name == "dflashd-client"]


def test_client_can_be_opened_again(daemon: ScriptedDaemon) -> None:
    """A closed client connects anew when it is used."""
    client = Client(daemon.endpoints.runtime_dir)
    for _ in range(2):
        assert client.status() == SNAPSHOT
        client.close()


def test_no_daemon_is_a_clear_error(runtime_dir: Path) -> None:
    """Connecting to nobody raises at once when told not to wait, and leaves no thread."""
    for _ in range(2):
        with pytest.raises(DflashError, match="dflashd serve"):
            Client(runtime_dir, wait_s=0).status()
    assert not [thread for thread in threading.enumerate() if thread.name == "dflashd-client"]


def test_callback_cannot_deadlock_the_client(client: Client) -> None:
    """A callback that waits for the client itself is refused instead of hanging."""
    with pytest.raises(RuntimeError, match="must not wait"):
        client.generate("m", "3", on_event=lambda event: print(client.status())).wait()  # noqa: T201
    assert client.status() == SNAPSHOT


PROGRAM = """
    import sys
    from pathlib import Path
    from dflashd.protocol import Client

    client = Client(Path(sys.argv[1]))
    {use}
"""


@pytest.mark.parametrize(
    "use",
    [
        'for chunk in client.generate("m", "forever"): print(chunk.text, flush=True)',
        'print("waiting", flush=True); client.generate("silent", "x").wait()',
        'kept = iter(client.generate("m", "forever")); print(next(kept), flush=True); input()',
    ],
    ids=["iterating", "waiting", "elsewhere"],
)
def test_ctrl_c_cancels_in_the_daemon(daemon: ScriptedDaemon, use: str) -> None:
    """Ctrl-C ends the program and its generation, even without a context to leave."""
    program = textwrap.dedent(PROGRAM).format(use=use)
    command = [sys.executable, "-c", program, str(daemon.endpoints.runtime_dir)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        daemon.expect(Generate)
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        errors = process.stderr.read().decode()
        assert process.wait(WAIT_S) == -signal.SIGINT
    assert errors.strip().endswith("KeyboardInterrupt"), errors
    assert len(daemon.expect(Cancel)) == 1


def test_program_may_end_without_closing(daemon: ScriptedDaemon) -> None:
    """A program that just ends, ends at once and quietly; its generation is cancelled."""
    use = 'kept = iter(client.generate("m", "forever")); next(kept)'
    program = textwrap.dedent(PROGRAM).format(use=use)
    command = [sys.executable, "-c", program, str(daemon.endpoints.runtime_dir)]
    done = subprocess.run(command, capture_output=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    daemon.expect(Cancel)


def test_a_fork_cannot_use_its_parents_client(client: Client, daemon: ScriptedDaemon) -> None:
    """In a forked process a client refuses at once, instead of waiting for a thread that is not
    there, and closing it there leaves the parent's as it is.
    """
    generation = client.generate("m", "forever")
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)  # a child that hangs is ended, and seen
        refused = 0
        for use in (client.status, generation.wait, lambda: client.generate("m", "x")):
            try:
                use()
            except RuntimeError:
                refused += 1
        generation.__exit__()
        client.close()
        os._exit(refused)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 3
    assert client.status() == SNAPSHOT
    assert next(iter(generation)).text == "0 "


def test_closing_and_using_it_at_once_is_no_misuse(client: Client) -> None:
    """Threads that use a client while others close it are answered, or told that it was closed."""

    def use(_: int) -> ErrorCode | None:
        try:
            client.status()
        except DflashError as error:
            return error.code
        return None

    with ThreadPoolExecutor(4) as pool:
        used = pool.map(use, range(40))
        for _ in range(40):
            client.close()
        assert set(used) <= {None, ErrorCode.cancelled}
    assert client.status() == SNAPSHOT
