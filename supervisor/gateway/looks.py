"""What can be looked at: models, health, metrics, and the page. Nothing here changes anything."""

from __future__ import annotations

from importlib.resources import files
from typing import TypeVar, final

from prometheus_client import generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...protocol.errors import DflashError
from .access import Access
from .health import degraded, unready
from .looking import Fresh, Sight
from .models import model, model_list
from .page_state import page_state
from .problem import no_model, problem_of
from .prometheus import registry_of
from .tally import Tally

T = TypeVar("T")

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_ASSETS = {"index.html": "text/html", "page.css": "text/css", "page.js": "text/javascript"}


@final
class Looks:
    """The endpoints."""

    def __init__(self, sight: Sight, tally: Tally, access: Access) -> None:
        self._sight = sight
        self._tally = tally
        self._access = access
        folder = files("dflashd.supervisor.gateway") / "page"
        self._assets = {name: (folder / name).read_bytes() for name in _ASSETS}

    @property
    def routes(self) -> list[Route]:
        """Where they are."""
        return [
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/health/live", self.live),
            Route("/health/ready", self.ready),
            Route("/metrics", self.metrics),
            Route("/status.json", self.status),
            Route("/", self.page),
            Route("/page.css", self.page),
            Route("/page.js", self.page),
        ]

    async def models(self, request: Request) -> Response:
        """All configured models."""
        return JSONResponse(
            model_list(await self._look(request, self._sight.snapshot)), headers=_HEADERS
        )

    async def model(self, request: Request) -> Response:
        """One of them."""
        snapshot = await self._look(request, self._sight.snapshot)
        name: str = request.path_params["name"]
        for status in snapshot.models:
            if status.name == name:
                return JSONResponse(model(status, snapshot), headers=_HEADERS)
        raise no_model(name)

    async def live(self, _request: Request) -> Response:
        """This process answers."""
        return JSONResponse({"status": "live"}, headers=_HEADERS)

    async def ready(self, request: Request) -> Response:
        """Requests can be served."""
        _ = self._access.authorise(request)
        try:
            snapshot = await self._sight.snapshot.get()
            reasons, problems = unready(snapshot), degraded(snapshot)
        except DflashError as error:
            reasons, problems = [error.message], []
        status = "unready" if reasons else "degraded" if problems else "ready"
        told = {"status": status, "reasons": reasons, "problems": problems}
        return JSONResponse(told, status_code=503 if reasons else 200, headers=_HEADERS)

    async def metrics(self, request: Request) -> Response:
        """Numbers for Prometheus."""
        snapshot = await self._look(request, self._sight.snapshot)
        metrics = await self._look(request, self._sight.metrics)
        text = generate_latest(registry_of(snapshot, metrics)) + generate_latest(
            self._tally.registry
        )
        return Response(text, media_type="text/plain; version=0.0.4", headers=_HEADERS)

    async def status(self, request: Request) -> Response:
        """What the page shows."""
        told = page_state(
            await self._look(request, self._sight.snapshot),
            await self._look(request, self._sight.metrics),
            await self._look(request, self._sight.events),
        )
        return JSONResponse(told, headers=_HEADERS)

    async def page(self, request: Request) -> Response:
        """The page and its two files."""
        _ = self._access.authorise(request)  # a browser asks its user then
        name = request.url.path.lstrip("/") or "index.html"
        headers = {**_HEADERS, "content-security-policy": PAGE_POLICY}
        return Response(self._assets[name], media_type=_ASSETS[name], headers=headers)

    async def _look(self, request: Request, value: Fresh[T]) -> T:
        _ = self._access.authorise(request)
        try:
            return await value.get()
        except DflashError as error:
            raise problem_of(error) from error
