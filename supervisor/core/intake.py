"""What clients may ask on the requests socket: generate, credit, cancel."""

from __future__ import annotations

from ...protocol.errors import ErrorCode
from ...protocol.messages import WINDOW_CHUNKS, AddCredit, Cancel, Failed, Generate
from . import ending, pace
from .events import ClientErred, ClientOverflowed, ClientSent, ClientVanished, Peer
from .life import Phase, Residency, WorkerState
from .records import Model, Request
from .refusals import CANCELLED, STOPPING, failed, given_up, unknown
from .shares import Client, Room
from .state import State


def generate(s: State, event: ClientSent, header: Generate, now: float) -> None:
    """Accept a request into its model's queue, or refuse it."""
    s.counters["generates"] += 1
    peer, client, body = event.peer, event.key or event.peer, event.body
    refused = refusal(s, client, header, len(body), now)
    if refused is not None:
        s.counters[str(refused.code)] += 1
        s.metrics.refused[header.model if header.model in s.models else "", refused.code] += 1
        s.tell(peer, refused)
        return
    s.last_serial += 1
    limit_s = None if header.deadline_ms is None else header.deadline_ms / 1000
    request = Request(
        id=header.id,
        peer=peer,
        client=client,
        model=header.model,
        body=body,
        serial=s.last_serial,
        accepted_at=now,
        granted=header.credit,
        deadline_at=None if limit_s is None else now + limit_s,
    )
    ending.enqueue(s, request)


def refusal(
    s: State, client: Client, header: Generate, body_bytes: int, now: float
) -> Failed | None:
    """Why a request cannot be accepted now, if it cannot."""
    if header.id in s.requests:
        # Without an id: the answer must not end the request that is already running.
        return failed(None, ErrorCode.bad_request, "this request id is in use already")
    if s.shutdown_level:
        return failed(header.id, ErrorCode.shutting_down, STOPPING, retryable=True)
    model = s.models.get(header.model)
    if model is None or model.removed:
        return failed(header.id, ErrorCode.not_found, unknown(s.models, header.model))
    return refusal_of_model(s, header, now) or refusal_of_queue(s, client, header, body_bytes)


def refusal_of_model(s: State, header: Generate, now: float) -> Failed | None:
    """Why a model or its worker takes nothing, if so."""
    model = s.models[header.model]
    worker = s.worker_of(model)
    if model.state is Residency.fatal:
        return failed(header.id, ErrorCode.load_failed, given_up(model.name, model.reason))
    if worker.state is WorkerState.fatal:
        return failed(header.id, ErrorCode.load_failed, given_up(model.name, worker.reason))
    if model.state is Residency.backoff:
        return refusal_to_wait(s, header, model.deadline, model.reason, now)
    if worker.state is WorkerState.backoff:
        return refusal_to_wait(s, header, worker.deadline, worker.reason, now)
    return None


def refusal_to_wait(
    s: State, header: Generate, until: float | None, reason: str, now: float
) -> Failed | None:
    """Nobody may wait for a restart that is far away."""
    left_s = (until or now) - now
    if left_s <= s.limits.backoff_wait_s:
        return None
    return failed(
        header.id,
        ErrorCode.worker_restarting,
        f"model {header.model} restarts in {left_s:.0f} s after a failure: {reason}",
        retryable=True,
        retry_after_s=left_s,
    )


def refusal_of_queue(s: State, client: Client, header: Generate, body_bytes: int) -> Failed | None:
    """Why this request may not wait, if so: no room, or none that is not others'."""
    model, share = s.models[header.model], s.shares.of(client)
    room = room_in(s, model)
    if room.has_none_for(body_bytes):
        why = "no room for another"
    elif room.is_less_than(share, model.name):
        why = f"{share.requests} are this client's, and the rest of the room is for others"
    else:
        return None
    return failed(
        header.id,
        ErrorCode.overloaded,
        f"{len(model.queue)} requests wait for model {model.name}, {s.queued} in all: {why}",
        retryable=True,
        retry_after_s=pace.retry_after_s(s, model),
    )


def room_in(s: State, model: Model) -> Room:
    """What may still wait for a model."""
    return Room(
        model_requests=s.limits.queued_requests_per_model - len(model.queue),
        requests=s.limits.queued_requests - s.queued,
        prompt_bytes=s.limits.queued_bytes - s.queued_bytes,
    )


def add_credit(s: State, peer: Peer, header: AddCredit, now: float) -> None:
    """Pass a client's credit on to the worker, never more than the window."""
    request = s.requests.get(header.id)
    if request is None or request.peer != peer or request.phase is Phase.ended:
        s.counters["credits_ignored"] += 1
        return
    room = WINDOW_CHUNKS - (request.granted - request.next_seq)
    chunks = min(header.chunks, room)
    if chunks < header.chunks:
        s.counters["credits_clamped"] += 1
    if chunks <= 0:
        return
    if request.phase is Phase.queued:
        request.granted += chunks
        return
    worker = s.workers[request.worker]
    if not request.has_credit:
        worker.moved_at = max(worker.moved_at, now)
    request.granted += chunks
    s.order(worker, AddCredit(id=request.id, chunks=chunks))


def cancel(s: State, peer: Peer, header: Cancel, now: float) -> None:
    """End a request early: at once while it waits, else when its worker says so."""
    request = s.requests.get(header.id)
    if request is None or request.peer != peer:
        s.counters["cancels_ignored"] += 1
        return
    s.counters["cancels"] += 1
    s.metrics.models[request.model].cancels += 1
    if request.phase is Phase.queued:
        ending.fail(s, request, now, ErrorCode.cancelled, CANCELLED)
    elif request.phase is Phase.running:
        request.phase = Phase.cancelling
        request.due_at = now + s.limits.cancel_timeout_s
        s.order(s.workers[request.worker], Cancel(id=request.id))


def erred(s: State, event: ClientErred, now: float) -> None:
    """Answer what cannot be read; a request it belongs to ends by that, and only once."""
    s.counters["client_protocol_errors"] += 1
    request = None if event.id is None else s.requests.get(event.id)
    if request is not None and request.peer == event.peer:
        ending.fail(s, request, now, event.code, event.message)
    else:
        s.tell(event.peer, failed(event.id, event.code, event.message))


def vanished(s: State, event: ClientVanished, now: float) -> None:
    """Stop all that a client asked for which is not there any more."""
    s.counters["clients_vanished"] += 1
    for request in requests_of(s, event.peer):
        if request.phase is not Phase.ended:
            s.counters["requests_orphaned"] += 1
            ending.abandon(s, request, now)
    forget_commands(s, event.peer)


def overflowed(s: State, event: ClientOverflowed, now: float) -> None:
    """End all that a client asked for which does not read its answers."""
    s.counters["clients_overflowed"] += 1
    for request in requests_of(s, event.peer):
        ending.fail(
            s, request, now, ErrorCode.slow_consumer, "this client does not read its answers"
        )


def requests_of(s: State, peer: Peer) -> list[Request]:
    """All requests of one client."""
    return [request for request in s.requests.values() if request.peer == peer]


def forget_commands(s: State, peer: Peer) -> None:
    """Answer none of a client's commands any more; what they began goes on."""
    for commands in s.waiting_commands():
        commands[:] = [command for command in commands if command.peer != peer]
    for worker in s.workers.values():
        kept = {id: command for id, command in worker.questions.items() if command.peer != peer}
        worker.questions = kept
