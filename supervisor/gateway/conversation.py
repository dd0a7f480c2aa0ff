"""One request answered: read, asked of the daemon, written back; and ended when the client goes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar, cast, final

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from ...protocol.client import AsyncClient
from ...protocol.errors import DflashError
from ...protocol.generation import Generation
from ..config.http_section import HttpSection
from ..logs.log import line, log
from .access import Access, Principal
from .admission import Admission
from .asked import Dialect, Question, Wanted, Whole, Writer
from .body import ClientLeft, body_of
from .outlet import Outlet
from .problem import Problem, problem_of
from .tally import Tally

T = TypeVar("T")

INTERNAL = Problem(
    status=500, code="internal", message="a mistake in the gateway: its log has more"
)

NOBODY = 499
"""What is counted when the client left before there was a status."""


@final
class Conversation:
    """An ASGI application: one dialect's endpoint."""

    def __init__(
        self,
        dialect: Dialect,
        client: AsyncClient,
        limits: HttpSection,
        *,
        access: Access,
        admission: Admission,
        tally: Tally,
    ) -> None:
        self._dialect = dialect
        self._client = client
        self._limits = limits
        self._access = access
        self._admission = admission
        self._tally = tally

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        began_s = time.monotonic()
        request, outlet = Request(scope), Outlet(send)
        model = ""
        try:
            principal = self._access.authorise(request)
            with self._admission.admitted(principal.name):
                question = self._dialect.read(await body_of(request, receive, self._limits))
                model = question.model
                await self._answer(question, principal, outlet, receive)
        except Problem as problem:
            await outlet.whole(problem.status, self._dialect.error(problem), problem.headers)
        except ClientLeft:
            pass  # nobody to answer
        except Exception as error:  # noqa: BLE001 - the border of a request
            log.error(line("http_internal_error", request=outlet.id), exc_info=error)
            if not outlet.started:
                await outlet.whole(INTERNAL.status, self._dialect.error(INTERNAL))
        finally:
            status = outlet.status or NOBODY
            took_s = time.monotonic() - began_s
            self._tally.answered(scope["path"], status, took_s)
            log.info(
                line(
                    "http_answered",
                    request=outlet.id,
                    path=scope["path"],
                    status=status,
                    model=model,
                    ms=round(took_s * 1e3),
                )
            )

    async def _answer(
        self, question: Question, principal: Principal, outlet: Outlet, receive: Receive
    ) -> None:
        if not question.stream:
            revoked = self._access.until_revoked(principal)
            wholes = await _attended((_gone(receive), revoked), self._collected(question))
            await outlet.whole(200, question.answer(wholes))
            return
        writer = question.writer()
        try:
            revoked = self._access.until_revoked(principal)
            work = self._streamed(question, writer, outlet)
            await _attended((_gone(receive), revoked), work)
        except Problem as problem:
            if not outlet.started:
                raise
            await outlet.say(writer.failed(problem))
        await outlet.end()

    async def _collected(self, question: Question) -> list[Whole]:
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(_collect(self._generation(question.model, wanted)))
                for wanted in question.wanted
            ]
        return [task.result() for task in running]

    async def _streamed(self, question: Question, writer: Writer, outlet: Outlet) -> None:
        begun = _Once(writer, outlet)
        async with asyncio.TaskGroup() as tasks:
            alive = tasks.create_task(outlet.keep_alive())
            async with asyncio.TaskGroup() as choices:
                for index, wanted in enumerate(question.wanted):
                    generation = self._generation(question.model, wanted)
                    _ = choices.create_task(begun.relay(index, generation))
            _ = alive.cancel()
        await outlet.say(writer.close())

    def _generation(self, model: str, wanted: Wanted) -> Generation:
        limit_s = self._limits.request_timeout_s
        return self._client.generate(model, wanted.prompt, deadline_s=limit_s, **wanted.options)


@final
class _Once:
    """Relays generations into one stream, which begins with the first word of any."""

    def __init__(self, writer: Writer, outlet: Outlet) -> None:
        self._writer = writer
        self._outlet = outlet
        self._begun = False

    async def relay(self, index: int, generation: Generation) -> None:
        """Write one generation from begin to end."""
        async with generation:
            while (chunk := await generation.next()) is not None:
                await self._outlet.say(self._beginning() + self._writer.chunk(index, chunk))
            if generation.stats is not None:
                ending = self._writer.end(index, generation.stats)
                await self._outlet.say(self._beginning() + ending)

    def _beginning(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        return self._writer.begin()


async def _attended(ends: Sequence[Coroutine[Any, Any, None]], work: Coroutine[Any, Any, T]) -> T:
    """Do ``work`` until one of ``ends`` raises. Raises Problem or ClientLeft, nothing else."""
    try:
        async with asyncio.TaskGroup() as tasks:
            watches = [tasks.create_task(end) for end in ends]
            result = await work
            for watch in watches:
                _ = watch.cancel()
    except BaseExceptionGroup as group:
        raise _cause(group) from group
    return result


async def _collect(generation: Generation) -> Whole:
    async with generation:
        whole = Whole()
        while (chunk := await generation.next()) is not None:
            whole.chunks.append(chunk)
        whole.stats = generation.stats
        return whole


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientLeft


def _cause(group: BaseExceptionGroup[BaseException]) -> Problem | ClientLeft:
    """What to make of several errors: who left needs no answer; else the first that is known."""
    leaves = _leaves(group)
    for leaf in leaves:
        if isinstance(leaf, ClientLeft):
            return leaf
    for leaf in leaves:
        if isinstance(leaf, Problem):
            return leaf
        if isinstance(leaf, DflashError):
            return problem_of(leaf)
    log.error(line("http_internal_error"), exc_info=leaves[0])
    return INTERNAL


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    group = cast("BaseExceptionGroup[BaseException]", error)
    return [leaf for inner in group.exceptions for leaf in _leaves(inner)]
