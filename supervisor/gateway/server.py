"""The gateway's listening socket and its server, from start to end."""

from __future__ import annotations

import socket
from errno import EADDRINUSE
from math import ceil
from pathlib import Path

import uvicorn

from ...protocol.client import AsyncClient
from ..config.http_section import HttpSection, is_loopback
from ..logs.log import line, log
from .access import Access
from .app import make_app
from .connection import PatientConnection
from .settings import GatewaySettings
from .tls import check_tls

FAREWELL_S = 2
"""How long answers under way may take to end when the daemon stops: it has drained before."""


async def serve(settings: GatewaySettings) -> None:
    """Serve until SIGTERM. Raises DflashError without a daemon, OSError without the address,
    DaemonError for keys and certificates that cannot be used.
    """
    http = settings.http
    access = Access(http, Path(settings.keys_dir))
    access.check()
    check_tls(http)
    if http.tls_key is None and not is_loopback(http.host):
        log.warning(line("http_unencrypted", url=http.url, risk="keys and prompts can be read"))
    async with AsyncClient(Path(settings.runtime_dir)) as client:
        with bound(http) as listener:
            log.info(line("http_listening", url=http.url))
            await server(make_app(settings, client, access), http).serve(sockets=[listener])


def bound(http: HttpSection) -> socket.socket:
    """The listening socket. Raises OSError that names the address."""
    family = socket.AF_INET6 if ":" in http.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((http.host, http.port))
    except OSError as error:
        listener.close()
        advice = ": another program has this port, choose another" * (error.errno == EADDRINUSE)
        raise OSError(f"{http.url} cannot be bound: {error.strerror}{advice}") from error
    return listener


def server(app: object, http: HttpSection) -> uvicorn.Server:
    """Uvicorn with every limit set, and nothing of its own to tell."""

    class Connection(PatientConnection):
        limits = http

    return uvicorn.Server(
        uvicorn.Config(
            app,  # pyright: ignore[reportArgumentType]
            http=Connection,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ssl_certfile=http.tls_certificate,
            ssl_keyfile=http.tls_key,
            limit_concurrency=http.connections,
            timeout_keep_alive=ceil(http.idle_timeout_s),
            h11_max_incomplete_event_size=http.header_bytes,
            timeout_graceful_shutdown=FAREWELL_S,
        )
    )
