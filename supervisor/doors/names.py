"""What libzmq calls connections that do not name themselves.

It counts, from a number of C's ``rand()``, which nobody has seeded: everybody knows it. A client
that names itself as the next one will be called has libzmq abort the whole process.
"""

from __future__ import annotations

import ctypes
import secrets


def make_unguessable() -> None:
    """Begin elsewhere at each start; before the first socket is made."""
    ctypes.CDLL(None).srand(ctypes.c_uint(secrets.randbits(32)))
