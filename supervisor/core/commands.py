"""What the owner may ask on the control socket: spawn, retire, shutdown, caches, and cancel."""

from __future__ import annotations

from ...protocol.errors import ErrorCode
from ...protocol.messages import (
    Cancel,
    ClearCache,
    Logs,
    Pin,
    ReadCache,
    Reload,
    Retire,
    Shutdown,
    Spawn,
)
from . import keeping, load_failure, placement, reading, retiring, shutdown
from .effects import StartWatch
from .events import Peer
from .home import asked
from .life import SERVED, Residency, WorkerState
from .records import Command, Model, Question, Worker
from .refusals import STOPPING, failed, unknown
from .state import State

NOBODY_WAITS = "nobody waits for this any more"


def command(
    s: State,
    peer: Peer,
    header: Spawn | Retire | Pin | ReadCache | ClearCache | Shutdown,
    now: float,
) -> None:
    """Carry out one command."""
    match header:
        case Spawn():
            spawn(s, peer, header)
        case Retire():
            retire(s, peer, header, now)
        case Pin():
            pin(s, peer, header)
        case ReadCache() | ClearCache():
            ask_cache(s, peer, header, now)
        case Shutdown():
            shut_down(s, peer, header, now)


def spawn(s: State, peer: Peer, header: Spawn) -> None:
    """Load a model now; an operator's word clears earlier failures."""
    if s.shutdown_level:
        refuse(s, peer, header.id, ErrorCode.shutting_down, STOPPING)
        return
    model = s.models.get(header.model)
    if model is None or model.removed:
        refuse(s, peer, header.id, ErrorCode.not_found, unknown(s.models, header.model))
        return
    if too_many(s, peer, header.id):
        return
    if header.group is not None and not put(s, peer, header, model, header.group):
        return
    model.spawns.append(Command(peer=peer, id=header.id))
    load_failure.forgive(s, model)
    s.call(model)


def put(s: State, peer: Peer, header: Spawn, model: Model, group: str) -> bool:
    """Move a model into a group, or with its own name out of any; False: refused."""
    home = asked(model.name, group)
    if group != model.name and group in s.models:
        sentence = f"{group} is a model; a group needs a name that no model has"
        refuse(s, peer, header.id, ErrorCode.bad_request, sentence)
    elif placement.is_elsewhere(s, model, home):
        sentence = (
            f"model {model.name} is in the worker {model.worker}: "
            f"`dflashctl retire {model.name}` first"
        )
        refuse(s, peer, header.id, ErrorCode.bad_request, sentence)
    else:
        placement.choose(s, model, home)
        return True
    return False


def retire(s: State, peer: Peer, header: Retire, now: float) -> None:
    """Unload a model; its requests finish first unless ``now``."""
    model = named(s, peer, header)
    if model is None:
        return
    if too_many(s, peer, header.id):
        return
    model.retires.append(Command(peer=peer, id=header.id))
    s.touch(s.worker_of(model))
    if model.state is Residency.fatal or s.worker_of(model).state is WorkerState.fatal:
        return
    if header.now:
        retiring.retire_now(s, model, now)
    else:
        retiring.retire(s, model, now)


def pin(s: State, peer: Peer, header: Pin) -> None:
    """Pin a model, or let it go again."""
    model = named(s, peer, header)
    if model is not None:
        keeping.pin(s, peer, header, model)


def ask_cache(s: State, peer: Peer, header: ReadCache | ClearCache, now: float) -> None:
    """Pass a question about a cache on to the worker that has the model loaded."""
    model = named(s, peer, header)
    if model is None:
        return
    worker = s.worker_of(model)
    if model.state not in SERVED:
        sentence = f"model {model.name} is not loaded, so its cache is not open"
        refuse(s, peer, header.id, ErrorCode.not_found, sentence, retryable=True)
        return
    if header.id in worker.questions:
        refuse(s, peer, header.id, ErrorCode.bad_request, "this id is in use already")
        return
    if too_many(s, peer, header.id):
        return
    due_at = now + s.limits.release_timeout_s
    worker.questions[header.id] = Question(peer=peer, id=header.id, due_at=due_at)
    s.order(worker, header)


def show_log(s: State, peer: Peer, header: Logs) -> None:
    """Show the log of the worker that a model belongs to, whether or not it runs."""
    model = named(s, peer, header)
    if model is not None:
        s.emit(StartWatch(peer=peer, header=header, worker=model.worker))


def questions_expired(s: State, worker: Worker, now: float) -> None:
    """Answer those whose worker does not."""
    for question in [q for q in worker.questions.values() if q.due_at <= now]:
        del worker.questions[question.id]
        sentence = "the worker did not answer in time"
        refuse(s, question.peer, question.id, ErrorCode.worker_lost, sentence, retryable=True)


def shut_down(s: State, peer: Peer, header: Shutdown, now: float) -> None:
    """Stop the daemon, also when too many wait to hear of it."""
    if not too_many(s, peer, header.id):
        s.shutdowns.append(Command(peer=peer, id=header.id))
        s.shutdown_told = ""
    shutdown.shut_down(s, now, max(s.shutdown_level, 2 if header.now else 1))


def reload(s: State, peer: Peer, header: Reload, body: bytes, now: float) -> None:
    """Change to the configuration as it is in its file now, or say what would change."""
    if not too_many(s, peer, header.id):
        reading.ask(s, Command(peer=peer, id=header.id), header, body, now)


def cancel(s: State, peer: Peer, header: Cancel) -> None:
    """Wait no longer for a command's end; what it began goes on."""
    wanted = Command(peer=peer, id=header.id)
    for commands in s.waiting_commands():
        if wanted in commands:
            commands.remove(wanted)
            refuse(s, peer, header.id, ErrorCode.cancelled, NOBODY_WAITS)
            return
    for worker in s.workers.values():
        question = worker.questions.get(header.id)
        if question is not None and question.peer == peer:
            del worker.questions[header.id]
            refuse(s, peer, header.id, ErrorCode.cancelled, NOBODY_WAITS)
            return
    s.counters["cancels_ignored"] += 1


def named(
    s: State, peer: Peer, header: Retire | Pin | ReadCache | ClearCache | Logs
) -> Model | None:
    """The model a command is about; None: it is refused, for there is none."""
    model = s.models.get(header.model)
    if model is None:
        refuse(s, peer, header.id, ErrorCode.not_found, unknown(s.models, header.model))
    return model


def too_many(s: State, peer: Peer, id: bytes) -> bool:
    """Refuse a command when too many wait already."""
    waiting = sum(map(len, s.waiting_commands()))
    waiting += sum(len(worker.questions) for worker in s.workers.values())
    if waiting < s.limits.pending_commands:
        return False
    refuse(s, peer, id, ErrorCode.overloaded, f"{waiting} commands wait already", retryable=True)
    return True


def refuse(
    s: State, peer: Peer, id: bytes, code: ErrorCode, message: str, *, retryable: bool = False
) -> None:
    """End a command at once without success."""
    s.tell(peer, failed(id, code, message, retryable=retryable))
