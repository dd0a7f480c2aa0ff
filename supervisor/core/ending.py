"""How a request ends: answered once, and let go of by its worker once."""

from __future__ import annotations

from ...protocol.errors import ErrorCode
from ...protocol.messages import Cancel, Failed, Header
from .life import Phase
from .records import Command, Model, Request, Worker
from .refusals import CANCELLED, failed
from .state import State


def enqueue(s: State, request: Request) -> None:
    """Make a new request wait for its model."""
    s.requests[request.id] = request
    model = s.models[request.model]
    model.queue[request.id] = request
    s.call(model)
    s.queued += 1
    s.queued_bytes += len(request.body)
    s.shares.add(request.client, model.name, len(request.body))


def dequeue(s: State, request: Request) -> None:
    """Take a request out of its model's queue, body and all."""
    del s.models[request.model].queue[request.id]
    s.queued -= 1
    s.queued_bytes -= len(request.body)
    s.shares.remove(request.client, request.model, len(request.body))
    request.body = b""


def answer(s: State, request: Request, header: Header, body: bytes = b"") -> None:
    """Give a request its one and last answer, unless it has had it."""
    if request.phase is not Phase.ended:
        s.tell(request.peer, header, body)
        code = str(header.code) if isinstance(header, Failed) else ""
        s.counters[code or "completed"] += 1
        s.metrics.models[request.model].ends[code or "done"] += 1


def release(s: State, request: Request) -> None:
    """Forget a request that no worker computes (any more)."""
    if request.phase is Phase.queued:
        dequeue(s, request)
        s.touch(s.worker_of(s.models[request.model]))
    else:
        del s.workers[request.worker].active[request.id]
        s.touch(s.workers[request.worker])
    request.phase = Phase.ended
    del s.requests[request.id]


def abandon(s: State, request: Request, now: float) -> None:
    """Stop wanting a request: forget it if it waits, else have its worker let go of it."""
    if request.phase is Phase.queued:
        release(s, request)
        return
    if request.phase is Phase.running:
        s.order(s.workers[request.worker], Cancel(id=request.id))
    request.phase = Phase.ended
    request.due_at = now + s.limits.release_timeout_s


def fail(
    s: State,
    request: Request,
    now: float,
    code: ErrorCode,
    message: str,
    *,
    retryable: bool = False,
    retry_after_s: float | None = None,
) -> None:
    """Answer a request with a failure of ours, then stop wanting it."""
    if request.phase is Phase.ended:
        return
    header = failed(request.id, code, message, retryable=retryable, retry_after_s=retry_after_s)
    answer(s, request, header)
    abandon(s, request, now)


def fail_active(
    s: State, worker: Worker, code: ErrorCode, message: str, *, model: str | None = None
) -> None:
    """Answer all a worker computes (for one model), and forget it: that is gone or about to go."""
    for request in list(worker.active.values()):
        if model is not None and request.model != model:
            continue
        if request.phase is Phase.cancelling:
            answer(s, request, failed(request.id, ErrorCode.cancelled, CANCELLED))
        else:
            answer(s, request, failed(request.id, code, message, retryable=True))
        release(s, request)
    if model is None:
        questions: list[Command] = [*worker.questions.values()]
        worker.questions.clear()
        s.fail_commands(questions, code, message, retryable=True)


def fail_queued(
    s: State,
    model: Model,
    now: float,
    code: ErrorCode,
    message: str,
    *,
    retryable: bool = False,
    retry_after_s: float | None = None,
) -> None:
    """Answer all that waits for a model."""
    for request in list(model.queue.values()):
        fail(s, request, now, code, message, retryable=retryable, retry_after_s=retry_after_s)
