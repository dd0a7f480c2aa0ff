"""Room in memory: what is loaded, what waits, what goes; real daemons, real files, real exits."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from dflashd.protocol import Client, DflashError, ErrorCode
from dflashd.protocol.messages import Accepted, ModelStatus

from .daemon_process import DaemonProcess, is_alive, wait_for

MakeDaemon = Callable[..., DaemonProcess]
GIB = 2**30
LARGE = {"memory_bytes": GIB}
ROOM_FOR_TWO = {"memory_bytes": 3 * GIB, "min_residency_s": 0.1, "ping_interval_s": 0.1}


def model_of(client: Client, name: str) -> ModelStatus:
    return next(model for model in client.status().models if model.name == name)


def loaded(client: Client) -> set[str]:
    return {model.name for model in client.status().models if model.loaded}


def test_idle_model_is_evicted_for_another(make_daemon: MakeDaemon) -> None:
    """The third model takes the place of the one unused for longest, once that is gone."""
    daemon = make_daemon(dict.fromkeys("abc", LARGE), **ROOM_FOR_TWO)
    with daemon.client() as client:
        for name in "ab":
            client.generate(name, "x").wait()
        status = client.status()
        assert status.pool_bytes == 3 * GIB
        assert 2 * GIB < status.reserved_bytes < 3 * GIB
        first = status.workers[0].pid
        assert first
        assert client.generate("c", "x").wait().text
        assert not is_alive(first)
        assert loaded(client) == {"b", "c"}
        assert model_of(client, "a").state == "stopped"
        assert client.status().reserved_bytes < 3 * GIB
    log = daemon.log.read_text()
    assert "model=a cause=least_recently_used" in log


def test_model_waits_with_a_reason_and_status_says_so(make_daemon: MakeDaemon) -> None:
    """While all room is in use, a client is told by whom; it is served when that ends."""
    long = {**LARGE, "chunks": 400}
    daemon = make_daemon({"a": long, "b": long, "c": LARGE}, **ROOM_FOR_TWO)
    heard: list[str] = []
    with daemon.client() as client:
        running = [client.generate(name, "x") for name in "ab"]
        wait_for(
            "both run", lambda: model_of(client, "a").active == model_of(client, "b").active == 1
        )
        waiting = client.generate(
            "c",
            "x",
            on_event=lambda e: heard.append(e.waits_for if isinstance(e, Accepted) else ""),
        )
        wait_for("c waits", lambda: model_of(client, "c").state == "waiting")
        assert "serving requests" in model_of(client, "c").reason
        assert {len(generation.wait().tokens) for generation in running} == {400}
        assert waiting.wait().text
        assert any("serving requests" in sentence for sentence in heard)


def test_pinned_model_stays_and_what_cannot_fit_beside_it_fails(make_daemon: MakeDaemon) -> None:
    """A pin holds against eviction; a load that could only fit without it fails, and says why."""
    flags = {"a": LARGE, "big": {"memory_bytes": 2 * GIB}}
    daemon = make_daemon(flags, **ROOM_FOR_TWO)
    with daemon.client() as client:
        client.spawn("a")
        client.pin("a")
        assert model_of(client, "a").pinned
        with pytest.raises(DflashError, match="pinned models") as caught:
            client.generate("big", "x").wait()
        assert caught.value.code is ErrorCode.out_of_memory
        assert loaded(client) == {"a"}
        client.pin("a", pinned=False)
        assert client.generate("big", "x").wait().text
        assert loaded(client) == {"big"}


def test_steady_traffic_does_not_starve_another_model(make_daemon: MakeDaemon) -> None:
    """A model waits behind another's traffic no longer than the bound, and nothing is lost."""
    flags = {"a": {"memory_bytes": 2 * GIB, "chunks": 40}, "b": {"memory_bytes": 2 * GIB}}
    daemon = make_daemon(flags, **ROOM_FOR_TWO, max_wait_behind_s=1.0)
    served: list[int] = []
    enough = threading.Event()

    def keep_asking() -> None:
        with daemon.client() as client:
            pending = [client.generate("a", "x")]
            chunks = iter(pending[0])
            # The second one begins in the middle of the first, so that there is always one.
            assert len([next(chunks) for _ in range(20)]) == 20
            pending.append(client.generate("a", "x"))
            while not enough.is_set():
                served.append(len(pending.pop(0).wait().tokens))
                pending.append(client.generate("a", "x"))
            served.extend(len(generation.wait().tokens) for generation in pending)

    thread = threading.Thread(target=keep_asking)
    with daemon.client() as client:
        client.spawn("a")
        thread.start()
        wait_for("traffic", lambda: len(served) > 2)
        for _ in range(2):
            assert client.generate("b", "x").wait().text
        enough.set()
        thread.join(30)
        assert not thread.is_alive()
        assert set(served) == {40}
        assert model_of(client, "a").loads >= 2
    assert "cause=waited_for_too_long" in daemon.log.read_text()


def test_idle_model_is_unloaded_and_preloaded_ones_are_there(make_daemon: MakeDaemon) -> None:
    """A preloaded model is up without a request; an idle one goes after its time."""
    sections = {"a": "preload = true", "b": "idle_ttl_s = 0.5"}
    daemon = make_daemon({"a": {}, "b": {}}, sections)
    with daemon.client() as client:
        wait_for("a is preloaded", lambda: model_of(client, "a").state == "ready")
        client.generate("b", "x").wait()
        wait_for("b goes", lambda: model_of(client, "b").state == "stopped")
        assert model_of(client, "a").state == "ready"
    assert "model=b cause=idle" in daemon.log.read_text()


def test_memory_that_runs_out_in_a_load_is_made_and_tried_once_more(
    make_daemon: MakeDaemon,
) -> None:
    """Out of memory at load: what is idle goes, the load is tried again, and then fails clearly."""
    flags = {"a": {}, "b": {"load_error": ["out_of_memory", "no room for the weights"]}}
    daemon = make_daemon(flags, min_residency_s=0.01)
    with daemon.client() as client:
        client.generate("a", "x").wait()
        with pytest.raises(DflashError, match="no room for the weights") as caught:
            client.generate("b", "x").wait()
        assert caught.value.code is ErrorCode.out_of_memory
        assert loaded(client) == set()
    log = daemon.log.read_text()
    assert log.count("load_tried_again") == 1
    assert "model=a cause=memory_ran_out" in log


def test_evicting_one_of_a_group_keeps_the_other_streaming(make_daemon: MakeDaemon) -> None:
    """Room is made inside a group's worker while its other model goes on."""
    group = 'group = "g"'
    flags = {"a": LARGE, "b": {**LARGE, "chunks": 300}, "c": LARGE}
    daemon = make_daemon(flags, {"a": group, "b": group}, **ROOM_FOR_TWO)
    with daemon.client() as client:
        client.generate("a", "x").wait()
        stream = client.generate("b", "x")
        next(chunks := iter(stream))
        assert client.generate("c", "x").wait().text
        assert loaded(client) == {"b", "c"}
        assert len(list(chunks)) == 299
