"""The gateway's routes put together."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...protocol.client import AsyncClient
from .access import Access
from .admission import Admission
from .asked import Dialect
from .conversation import Conversation
from .dialects.chat import Chat
from .dialects.completions import Completions
from .dialects.messages import Messages
from .dialects.token_count import TokenCount
from .guard import Guard
from .looking import Sight
from .looks import Looks
from .problem import Problem
from .settings import GatewaySettings
from .tally import Tally

DIALECTS: dict[str, Dialect] = {
    "/v1/chat/completions": Chat(),
    "/v1/completions": Completions(),
    "/v1/messages": Messages(),
    "/v1/messages/count_tokens": TokenCount(),
}


def make_app(settings: GatewaySettings, client: AsyncClient, access: Access) -> Starlette:
    """The ASGI application; ``client`` is open while it serves."""
    limits, tally = settings.http, Tally()
    admission = Admission(limits.active_requests, limits.active_requests_per_client)
    looks = Looks(Sight(client), tally, access)
    conversations = [
        Route(
            path,
            Conversation(dialect, client, limits, access=access, admission=admission, tally=tally),
            methods=["POST"],
        )
        for path, dialect in DIALECTS.items()
    ]
    return Starlette(
        routes=[*conversations, *looks.routes],
        middleware=[Middleware(Guard, host=None if limits.asks_for_keys else limits.host)],
        exception_handlers={Problem: _refused, HTTPException: _nothing_there},
    )


async def _refused(request: Request, problem: Exception) -> Response:
    if not isinstance(problem, Problem):
        raise problem
    return _response(request, problem)


async def _nothing_there(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    code, what = "not_found", "is not offered here"
    if error.status_code == 405:
        code, what = "method_not_allowed", "does not take this method"
    problem = Problem(status=error.status_code, code=code, message=f"{request.url.path} {what}")
    answer = _response(request, problem)
    answer.headers.update(error.headers or {})  # which methods it takes
    return answer


def _response(request: Request, problem: Problem) -> Response:
    """In the shape of whoever's path it is."""
    spoken = "/v1/messages" if request.url.path.startswith("/v1/messages") else None
    if "anthropic-version" in request.headers:
        spoken = "/v1/messages"
    body = DIALECTS[spoken or "/v1/chat/completions"].error(problem)
    return Response(body, problem.status, headers=problem.headers, media_type="application/json")
