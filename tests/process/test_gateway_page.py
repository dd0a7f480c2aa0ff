"""The page, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from .browser import chromium, look
from .daemon_process import wait_for
from .gateway_process import Gateway
from .test_gateway_faults import ASK, CHAT

PROGRAM = chromium()


def test_the_page_asks_nothing_of_others(shared_gateway: Gateway) -> None:
    """A strict policy, and no address but its own in any of its files."""
    for path in ("/", "/page.css", "/page.js"):
        status, headers, body = shared_gateway.get(path)
        assert status == 200
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert not re.search(rb"https?://|//[a-z]+\.[a-z]", body)
        assert b"innerHTML" not in body


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium is installed on this machine")
@pytest.mark.parametrize(("width", "height"), [(1100, 800), (390, 844)])
def test_the_page_shows_the_daemon(
    make_gateway: Callable[..., Gateway], tmp_path: Path, width: int, height: int
) -> None:
    """Models with their states, what is wrong and why, as text and never as markup."""
    assert PROGRAM is not None
    words = "ValueError: no <b>such</b> file\n"
    gateway = make_gateway({"good": {}, "bad": {"exit_at_start": 78, "last_words": words}})
    (gateway.daemon.runtime_dir / "workers.new").mkdir()  # in the way of the list of processes
    assert gateway.post(CHAT, {**ASK, "model": "good"})[0] == 200
    assert gateway.post(CHAT, {**ASK, "model": "bad"})[0] == 503
    wait_for("it gives up", lambda: gateway.daemon.status().models[1].state == "fatal")
    drawn = look(PROGRAM, gateway.url, tmp_path / "page", width=width, height=height)
    assert (tmp_path / "page.png").stat().st_size > 10_000
    cards = re.findall(r'<span class="name">(.*?)</span><span class="(.*?)">(.*?)</span>', drawn)
    assert cards == [("good", "state ready", "ready"), ("bad", "state bad", "fatal")]
    assert "serving for" in drawn
    assert "no &lt;b&gt;such&lt;/b&gt; file" in drawn
    assert "held by workers" in drawn
    assert re.search(r"<li>[^<]*workers.json cannot be written", drawn)
    assert "worker_exited worker=bad" in drawn
    assert gateway.daemon.status().models[0].completed == 1
