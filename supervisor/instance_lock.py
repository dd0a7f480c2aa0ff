"""One daemon per runtime directory: a lock file that names its holder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Self, final

import msgspec

from .errors import AlreadyServed, UnsafeDirectory

LOCK_NAME = "dflashd.lock"


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a lock."""

    pid: int
    instance: str


def holder_pid(lock: Path) -> int | None:
    """Who a lock file names, as far as it can be read; it need not be held any more."""
    try:
        return msgspec.json.decode(lock.read_bytes(), type=Holder).pid
    except (OSError, msgspec.MsgspecError):
        return None


@final
class InstanceLock:
    """Held while the daemon lives; the file is gone afterwards.

    Raises AlreadyServed on entry when another process holds it.
    """

    def __init__(self, runtime_dir: Path, instance: str) -> None:
        self.path = runtime_dir / LOCK_NAME
        self._instance = instance
        self._fd = -1

    def __enter__(self) -> Self:
        while self._fd < 0:
            self._fd = self._try_lock()
        try:
            self._sign()
        except OSError as error:  # no space, most likely
            self._release()
            raise UnsafeDirectory(f"{self.path} cannot be written: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def _sign(self) -> None:
        text = msgspec.json.encode(Holder(pid=os.getpid(), instance=self._instance))
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, text + b"\n", 0)

    def _release(self) -> None:
        # Unlinked while held: whoever opened the old file sees that it is not the path's any more.
        self.path.unlink(missing_ok=True)
        os.close(self._fd)
        self._fd = -1

    def _try_lock(self) -> int:
        """A locked descriptor of the file at the path, or -1 if that was replaced meanwhile."""
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise UnsafeDirectory(f"{self.path} cannot be used: {error}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_ino == self.path.stat().st_ino:
                return fd
        except BlockingIOError:
            os.close(fd)
            raise AlreadyServed(self._refusal()) from None
        except FileNotFoundError:
            pass
        except OSError as error:
            os.close(fd)
            raise UnsafeDirectory(
                f"{self.path} cannot be locked: {error}; give dflashd a runtime_dir on a local disk"
            ) from error
        os.close(fd)
        return -1

    def _refusal(self) -> str:
        pid = holder_pid(self.path)
        who = "another dflashd" if pid is None else f"dflashd (pid {pid})"
        return (
            f"{who} serves {self.path.parent} already: stop it with `dflashctl shutdown`, "
            "or give this one another runtime_dir"
        )
