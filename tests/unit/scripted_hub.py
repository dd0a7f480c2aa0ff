"""A hub on this machine that serves one small repository to the real client library."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c" * 40
REPOSITORY = "owner/tiny"


@dataclass
class Stall:
    """In the middle of the file ``name`` the hub falls silent, until it may ``go`` on."""

    name: str
    reached: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)


@contextmanager
def scripted_hub(files: dict[str, bytes], stall: Stall | None = None) -> Generator[str]:
    """The address of a hub whose only repository, ``owner/tiny``, holds ``files``."""

    server = _Server(files, stall)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        if stall is not None:
            stall.go.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    def __init__(self, files: dict[str, bytes], stall: Stall | None) -> None:
        self.files = files
        self.stall = stall
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride] - the one that made it

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path == f"/api/models/{REPOSITORY}/revision/main":
            names = [{"rfilename": name} for name in self.server.files]
            self._send_json({"id": REPOSITORY, "sha": COMMIT, "siblings": names})
        elif path == f"/api/models/{REPOSITORY}/tree/{COMMIT}":
            self._send_json(
                [
                    {"type": "file", "path": name, "size": len(data), "oid": _oid(data)}
                    for name, data in self.server.files.items()
                ]
            )
        elif path.startswith(f"/{REPOSITORY}/resolve/{COMMIT}/"):
            name = path.rpartition("/")[2]
            stall = self.server.stall
            self._send(self.server.files[name], stall if stall and stall.name == name else None)
        else:
            self._refuse(path)

    do_HEAD = do_GET  # noqa: N815

    def _send_json(self, value: Any) -> None:
        self._send(json.dumps(value).encode())

    def _send(self, data: bytes, stall: Stall | None = None) -> None:
        wanted = self.headers.get("Range", "bytes=0-").removeprefix("bytes=")
        start = int(wanted.partition("-")[0])
        rest = data[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(rest)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("ETag", f'"{_oid(data)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command != "GET":
            return
        half = len(rest) // 2
        self.wfile.write(rest[:half])
        if stall is not None and not stall.go.is_set():
            self.wfile.flush()
            stall.reached.set()
            stall.go.wait()
        with suppress(OSError):  # the client has gone meanwhile
            self.wfile.write(rest[half:])

    def _refuse(self, path: str) -> None:
        known = REPOSITORY in path
        code = "RevisionNotFound" if known else "RepoNotFound"
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
