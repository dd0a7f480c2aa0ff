"""A door for processes of this machine: a Unix socket that only its owner can open."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import final

import zmq

from ...protocol.codec import Kinds
from ...protocol.paths import full_path
from .door import CLIENT_BURST_MESSAGES, Door


@final
class LocalDoor(Door):
    """Bound at ``path``, whose name without its ending is the door's."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        path: Path,
        kinds: Kinds,
        *,
        burst_messages: int = CLIENT_BURST_MESSAGES,
    ) -> None:
        self._path = path
        super().__init__(context, path.stem, kinds, burst_messages=burst_messages)

    def _bind(self) -> None:
        old_mask = os.umask(0o177)
        try:
            self._socket.bind(f"ipc://{self._path}")
        finally:
            os.umask(old_mask)
        self._path.chmod(0o600)
        full_path(self._path).unlink(missing_ok=True)

    def let_in(self, *, new_peers: bool) -> None:
        """As of any door. The socket's file is moved: closing it would disconnect everybody."""
        source, target = self._path, full_path(self._path)
        if new_peers:
            source, target = target, source
        with contextlib.suppress(FileNotFoundError):
            source.replace(target)

    def close(self) -> None:
        """Close and remove the socket's file; what was sent may still leave for a moment."""
        self._socket.close()
        self._path.unlink(missing_ok=True)
        full_path(self._path).unlink(missing_ok=True)
