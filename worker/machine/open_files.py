"""The open-file limit, raised and then kept from a library that lowers it."""

from __future__ import annotations

import resource
from collections.abc import Generator
from contextlib import contextmanager

_ENOUGH = 10_240
"""What macOS allows at most for a soft limit, and plenty elsewhere."""


@contextmanager
def kept() -> Generator[None]:
    """Raise the soft limit, and ignore other code's changes of it inside the block.

    Importing ``mlx_lm.utils`` sets hard and soft limit to a few thousand; a hard limit cannot be
    raised again afterwards, and where it was lower already the import itself would fail.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
    original = resource.setrlimit

    def others_only(which: int, limits: tuple[int, int], /) -> None:
        if which != resource.RLIMIT_NOFILE:
            original(which, limits)

    resource.setrlimit = others_only
    try:
        yield
    finally:
        resource.setrlimit = original
