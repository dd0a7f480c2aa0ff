"""When a thread is really over: also behind the last line of Python.

``Thread.join`` returns when a thread has run its Python code. What mlx keeps for each thread is
destroyed after that, and takes the GIL for it; an interpreter that shuts down meanwhile gives it
none but ends the thread, and C++ aborts the process. So whoever may be the last waits here.

The mark is a pipe whose end the thread closes with its thread-specific data, the last thing a
thread does.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import select
import weakref
from typing import final

_ABOVE_STANDARD_STREAMS = 3
"""A thread's data of value 0 would not be destroyed."""


@final
class ThreadEnd:
    """Of the one thread that calls :meth:`mark`."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe()
        self._marked = False
        _ends.add(self)

    def mark(self) -> None:
        """The calling thread is the one. Raises OSError."""
        fd = fcntl.fcntl(self._write_fd, fcntl.F_DUPFD_CLOEXEC, _ABOVE_STANDARD_STREAMS)
        if _libc().pthread_setspecific(_key(), ctypes.c_void_p(fd)) != 0:
            os.close(fd)
            raise OSError("pthread_setspecific failed")
        os.close(self._write_fd)
        self._write_fd = fd
        self._marked = True

    def wait(self, timeout_s: float) -> bool:
        """Whether the thread is over, after waiting for that."""
        if not self._marked:
            return True
        poll = select.poll()
        poll.register(self._read_fd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def forget(self) -> None:
        """In a child that was forked: the thread is not here, and its mark is not ours to hold."""
        if self.wait(0):
            return  # its number may be another's by now
        os.close(self._write_fd)
        self._write_fd = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        self._marked = False

    def __del__(self) -> None:
        os.close(self._read_fd)
        if not self._marked:
            os.close(self._write_fd)


_ends: weakref.WeakSet[ThreadEnd] = weakref.WeakSet()


def _forget_all() -> None:
    for end in tuple(_ends):
        end.forget()


os.register_at_fork(after_in_child=_forget_all)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@functools.cache
def _key() -> ctypes.c_ulong:
    """The key whose value, a descriptor, is closed when a thread ends. Raises OSError."""
    key = ctypes.c_ulong(0)
    close = ctypes.cast(_libc().close, ctypes.c_void_p)
    if _libc().pthread_key_create(ctypes.byref(key), close) != 0:
        raise OSError("pthread_key_create failed")
    return key
