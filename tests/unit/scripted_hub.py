"""A hub on this machine that serves one small repository to the real client library."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c" * 40
REPOSITORY = "owner/tiny"


@contextmanager
def scripted_hub(files: dict[str, bytes]) -> Generator[str]:
    """The address of a hub whose only repository, ``owner/tiny``, holds ``files``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            if path == f"/api/models/{REPOSITORY}/revision/main":
                names = [{"rfilename": name} for name in files]
                self._send_json({"id": REPOSITORY, "sha": COMMIT, "siblings": names})
            elif path == f"/api/models/{REPOSITORY}/tree/{COMMIT}":
                self._send_json(
                    [
                        {"type": "file", "path": name, "size": len(data), "oid": _oid(data)}
                        for name, data in files.items()
                    ]
                )
            elif path.startswith(f"/{REPOSITORY}/resolve/{COMMIT}/"):
                self._send(files[path.rpartition("/")[2]])
            else:
                self._refuse(path)

        do_HEAD = do_GET  # noqa: N815

        def _send_json(self, value: Any) -> None:
            self._send(json.dumps(value).encode())

        def _send(self, data: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("ETag", f'"{_oid(data)}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def _refuse(self, path: str) -> None:
            known = REPOSITORY in path
            code = "RevisionNotFound" if known else "RepoNotFound"
            self.send_response(404)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
