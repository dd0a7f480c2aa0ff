"""A socket of the daemon: what its peers do must neither end it nor hold it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from dflashd.protocol.messages import FromClient
from dflashd.protocol.paths import Endpoints
from dflashd.supervisor.doors.door import WORKER_BURST_MESSAGES
from dflashd.supervisor.doors.local import LocalDoor
from dflashd.supervisor.errors import DaemonError
from dflashd.supervisor.sockets import open_sockets

FLOODED_DOOR = """
import sys, time
from pathlib import Path
import zmq
from dflashd.protocol.messages import FromClient
from dflashd.supervisor.doors.door import WORKER_BURST_MESSAGES
from dflashd.supervisor.doors.local import LocalDoor

path = Path(sys.argv[1])
door = LocalDoor(zmq.Context(), path, FromClient, burst_messages=WORKER_BURST_MESSAGES)
context = zmq.Context()
client = context.socket(zmq.DEALER)
client.setsockopt(zmq.SNDHWM, 0)
client.setsockopt(zmq.LINGER, 0)
client.connect(f"ipc://{path}")
for _ in range(20 * WORKER_BURST_MESSAGES):
    client.send(bytes(1000))
while not door.may_have_message or not list(door.receive(1)):
    time.sleep(0.01)
client.close()
context.term()
end = time.monotonic() + 7
while time.monotonic() < end:
    time.sleep(0.1)
print(len(list(door.receive(20 * WORKER_BURST_MESSAGES))))
"""


def test_peer_that_leaves_with_its_pipe_full_does_not_abort_the_process(tmp_path: Path) -> None:
    """A client floods us and dies while we are busy for seconds: we live, and read what came."""
    ended = subprocess.run(
        [sys.executable, "-c", FLOODED_DOOR, str(tmp_path / "a.sock")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) >= WORKER_BURST_MESSAGES / 2


def test_failed_bind_leaves_no_socket_open(tmp_path: Path) -> None:
    """A door that cannot be bound holds nothing: the context ends at once."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with pytest.raises(zmq.ZMQError) as kept:
        LocalDoor(context, tmp_path / "missing" / "a.sock", FromClient)
    assert kept.value.__traceback__ is not None  # which keeps the half-made door alive
    assert all(own.closed for own in context._sockets)
    context.term()


def test_daemon_whose_sockets_cannot_be_bound_says_so(tmp_path: Path) -> None:
    """No room for a socket file: an error with the path, not a wait for ever."""
    (tmp_path / "control.sock").mkdir()
    with pytest.raises(DaemonError, match="cannot be bound"), open_sockets(Endpoints(tmp_path)):
        pass
    assert not (tmp_path / "requests.sock").exists()
