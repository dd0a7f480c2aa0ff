"""What the owner may ask on the control socket: spawn, retire, shutdown, and cancel of these."""

from __future__ import annotations

from ...protocol.errors import ErrorCode
from ...protocol.messages import Cancel, Failed, Retire, Shutdown, Spawn
from . import stopping
from .events import Peer
from .intake import unknown_model
from .records import SENTENCE_CHARACTERS, SERVING, Command, WorkerState
from .state import State


def spawn(s: State, peer: Peer, header: Spawn) -> None:
    """Load a model now; an operator's word clears earlier failures."""
    if s.shutdown_level:
        refuse(s, peer, header.id, ErrorCode.shutting_down, "the daemon is stopping")
        return
    model = s.models.get(header.model)
    if model is None:
        refuse(s, peer, header.id, ErrorCode.not_found, unknown_model(s, header.model))
        return
    if too_many(s, peer, header.id):
        return
    model.spawns.append(Command(peer=peer, id=header.id))
    worker = s.workers[model.worker]
    worker.failures.clear()
    if worker.state in (WorkerState.fatal, WorkerState.backoff):
        s.enter(worker, WorkerState.stopped, None)
    s.touch(worker)


def retire(s: State, peer: Peer, header: Retire, now: float) -> None:
    """Unload a model; its requests finish first unless ``now``."""
    model = s.models.get(header.model)
    if model is None:
        refuse(s, peer, header.id, ErrorCode.not_found, unknown_model(s, header.model))
        return
    if too_many(s, peer, header.id):
        return
    worker = s.workers[model.worker]
    worker.retires.append(Command(peer=peer, id=header.id))
    s.touch(worker)
    if worker.state is WorkerState.fatal:
        return
    if header.now or worker.state not in SERVING | {WorkerState.draining}:
        stopping.retire_now(s, worker, now)
    elif worker.state in SERVING:
        stopping.drain(s, worker, now, s.limits.drain_timeout_s)


def shutdown(s: State, peer: Peer, header: Shutdown, now: float) -> None:
    """Stop the daemon."""
    s.shutdowns.append(Command(peer=peer, id=header.id))
    stopping.shut_down(s, now, max(s.shutdown_level, 2 if header.now else 1))


def cancel(s: State, peer: Peer, header: Cancel) -> None:
    """Wait no longer for a command's end; what it began goes on."""
    command = Command(peer=peer, id=header.id)
    waiting = [m.spawns for m in s.models.values()] + [w.retires for w in s.workers.values()]
    for commands in (*waiting, s.shutdowns):
        if command in commands:
            commands.remove(command)
            refuse(s, peer, header.id, ErrorCode.cancelled, "nobody waits for this any more")
            return
    s.counters["cancels_ignored"] += 1


def too_many(s: State, peer: Peer, id: bytes) -> bool:
    """Refuse a command when too many wait already."""
    waiting = sum(len(m.spawns) for m in s.models.values())
    waiting += sum(len(w.retires) for w in s.workers.values())
    if waiting < s.limits.pending_commands:
        return False
    refuse(s, peer, id, ErrorCode.overloaded, f"{waiting} commands wait already", retryable=True)
    return True


def refuse(
    s: State, peer: Peer, id: bytes, code: ErrorCode, message: str, *, retryable: bool = False
) -> None:
    """End a command at once without success."""
    s.tell(
        peer, Failed(id=id, code=code, message=message[:SENTENCE_CHARACTERS], retryable=retryable)
    )
