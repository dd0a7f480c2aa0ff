"""What workers say about requests and questions: chunks on, and the one end."""

from __future__ import annotations

from ...protocol.errors import ErrorCode
from ...protocol.messages import CacheState, Chunk, Done, Failed
from . import ending, pace
from .effects import SendToClient
from .events import WorkerSent
from .life import Phase
from .records import Request, Worker
from .state import State


def chunk(s: State, worker: Worker, header: Chunk, event: WorkerSent, now: float) -> None:
    """Pass one chunk on to the client that asked, if it is the next one."""
    request = leased(s, worker, header.id, header.epoch)
    if request is None:
        return
    worker.moved_at = now
    if request.phase is Phase.ended:
        s.counters["chunks_late"] += 1
        return
    if header.seq != request.next_seq or not request.has_credit:
        s.counters["worker_protocol_errors"] += 1
        s.note(
            "chunk_out_of_order",
            worker=worker.name,
            epoch=worker.epoch,
            request=request.id.hex(),
            seq=header.seq,
            expected=request.next_seq,
            granted=request.granted,
        )
        broken = "the worker sent a chunk out of order or beyond its credit"
        ending.fail(s, request, now, ErrorCode.internal, broken)
        return
    s.metrics.models[request.model].chunk(request, header.tokens, now)
    request.next_seq += 1
    request.told_at = now
    s.counters["chunks"] += 1
    s.effects.append(SendToClient(peer=request.peer, header=header, body=event.body))


def ended(
    s: State, worker: Worker, header: Done | Failed | CacheState, event: WorkerSent, now: float
) -> None:
    """Pass an end on to who asked."""
    match header:
        case Done():
            done(s, worker, header, event, now)
        case Failed():
            failed(s, worker, header, event, now)
        case CacheState():
            cache_state(s, worker, header, event)


def done(s: State, worker: Worker, header: Done, event: WorkerSent, now: float) -> None:
    """Pass a worker's Done on, and free its place."""
    request = leased(s, worker, header.id, header.epoch)
    if request is None:
        return
    worker.moved_at = now
    s.models[request.model].completed += 1
    end(s, request, header, event.body, now)


def failed(s: State, worker: Worker, header: Failed, event: WorkerSent, now: float) -> None:
    """Pass a worker's Failed on, and free its place."""
    if header.id is None or header.epoch is None:
        s.counters["worker_complaints"] += 1
        s.note(
            "worker_complained",
            worker=worker.name,
            epoch=worker.epoch,
            code=header.code,
            message=header.message,
        )
        return
    if header.id in worker.questions:
        answer(s, worker, header.id, header, event)
        return
    request = leased(s, worker, header.id, header.epoch)
    if request is None:
        return
    worker.moved_at = now
    end(s, request, header, event.body, now)


def cache_state(s: State, worker: Worker, header: CacheState, event: WorkerSent) -> None:
    """Pass the state of a cache on to who asked, if somebody still waits for it."""
    if header.id in worker.questions:
        answer(s, worker, header.id, header, event)
    else:
        s.counters["stale_dropped"] += 1


def answer(
    s: State, worker: Worker, id: bytes, header: CacheState | Failed, event: WorkerSent
) -> None:
    """End a question that a worker answers itself."""
    s.tell(worker.questions.pop(id).peer, header, event.body)


def end(s: State, request: Request, header: Done | Failed, body: bytes, now: float) -> None:
    """Answer with the worker's own last word."""
    ending.answer(s, request, header, body)
    ending.release(s, request)
    model = s.models[request.model]
    model.idle_since = now
    pace.served(model, request, now)


def leased(s: State, worker: Worker, id: bytes, epoch: int | None) -> Request | None:
    """The request a worker speaks of, if that incarnation holds it."""
    request = worker.active.get(id)
    if request is None or request.epoch != epoch:
        s.counters["stale_dropped"] += 1
        return None
    return request
