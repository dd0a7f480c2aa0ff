"""Proof, again and again, that a good key gets in and a bad one does not.

Nothing else would show it: a handshake that nobody answers hangs without a word, and a listener
that lets everybody in works for those who may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import final

import zmq

from ...protocol.key_file import KeyFile, new_pair
from ...protocol.link import Link

HANDSHAKE_S = 10.0
"""Longest time for one proof; a busy machine needs a moment."""


@final
class Canary:
    """Connects to our own addresses, as any client would."""

    def __init__(self, urls: Sequence[str], server: str) -> None:
        self._urls = tuple(url_from_here(url) for url in urls)
        self._server = server
        self._good = self._pair()

    @property
    def public(self) -> str:
        """The good key, made anew by each daemon and known to it alone. It may not ask anything."""
        return self._good.public

    async def problem(self) -> str:
        """What is wrong, as a sentence; empty if nothing is."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            for url in self._urls:
                if await gets_in(context, url, self._pair()):
                    return BAD_KEY_GOT_IN
                if await gets_in(context, url, None):
                    return NO_KEY_GOT_IN
                if not await gets_in(context, url, self._good):
                    return "a key that is allowed does not get in"
        finally:
            context.destroy(linger=0)
        return ""

    def _pair(self) -> KeyFile:
        public, secret = new_pair()
        return KeyFile(name="canary", server=self._server, public=public, secret=secret)


BAD_KEY_GOT_IN = "a key that is not allowed got in"
NO_KEY_GOT_IN = "a client without a key got in"


async def gets_in(context: zmq.Context[zmq.Socket[bytes]], url: str, key: KeyFile | None) -> bool:
    """Whether a handshake succeeds; silence counts as a no."""

    def nothing(_frames: object = None) -> None:
        pass

    link = Link(context, url, key=key, on_message=nothing, on_up=nothing, on_down=nothing)
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            while not (link.up or link.unauthorised or link.broken):
                await link.change()
            return link.up
    except TimeoutError:
        return False
    finally:
        link.close()


def url_from_here(url: str) -> str:
    """An address that is bound, as one to connect to."""
    for everywhere, here in (
        ("//0.0.0.0:", "//127.0.0.1:"),
        ("//*:", "//127.0.0.1:"),
        ("//[::]:", "//[::1]:"),
    ):
        url = url.replace(everywhere, here)
    return url
