"""Reload of a real daemon: what stays the same is not touched, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from dflashd.protocol import Client, DflashError, ErrorCode
from dflashd.protocol.messages import Accepted, ModelStatus

from .daemon_process import DaemonProcess, is_alive, wait_for
from .test_cli_commands import ctl

pytestmark = pytest.mark.slow

MakeDaemon = Callable[..., DaemonProcess]
LONG = {"chunks": 100_000, "chunk_s": 0.005}
Models = dict[str, str]


def write(daemon: DaemonProcess, models: Models, **limits: float | bool) -> None:
    """Replace the configuration file in one step; a model's value is its lines after the target."""
    daemon_section = {**daemon.limits, **limits}
    lines = [f'[daemon]\nruntime_dir = "{daemon.runtime_dir}"\nstate_dir = "{daemon.state_dir}"']
    lines += [f"{key} = {json.dumps(value)}" for key, value in daemon_section.items()]
    lines += [f'[models."{name}"]\ntarget = "fake"\n{rest}' for name, rest in models.items()]
    fresh = daemon.home / "fresh.toml"
    fresh.write_text("\n".join(lines))
    fresh.rename(daemon.config)


def model(daemon: DaemonProcess, name: str) -> ModelStatus | None:
    return next((m for m in daemon.status().models if m.name == name), None)


def pid_of(client: Client, name: str) -> int:
    """The worker that answers for a model."""
    return stats_pid(client.generate(name, "x"))


def stats_pid(generation: Any) -> int:
    generation.wait()
    return generation.stats.worker_pid


def changes(client: Client, **options: Any) -> dict[str, str]:
    return {m.name: m.change for m in client.reload(**options).models}


def logged(daemon: DaemonProcess, text: str, count: int = 1) -> None:
    wait_for(text, lambda: daemon.log.read_text().count(text) >= count)


def test_unchanged_models_keep_worker_and_stream(make_daemon: MakeDaemon) -> None:
    """Kept: same pid, stream uncut. Changed: another pid. Removed: not found. Added: answers."""
    daemon = make_daemon({"a": {"chunks": 150}, "b": {}, "c": {}})
    write(daemon, {"a": "", "b": "", "c": ""})
    with daemon.client() as client:
        pids = {name: pid_of(client, name) for name in "abc"}
        stream = client.generate("a", "x")
        chunks = iter(stream)
        next(chunks)
        write(daemon, {"a": "", "b": "max_tokens = 5", "d": ""})
        answer = client.reload()
        assert {m.name: m.change for m in answer.models} == {
            "a": "kept",
            "b": "replaced",
            "c": "removed",
            "d": "added",
        }
        changed = next(m for m in answer.models if m.name == "b")
        assert [(k.key, k.before, k.after) for k in changed.keys] == [("max_tokens", "512", "5")]
        assert pid_of(client, "b") != pids["b"]
        assert pid_of(client, "d")
        with pytest.raises(DflashError) as caught:
            client.generate("c", "x").wait()
        assert caught.value.code is ErrorCode.not_found
        assert len(list(chunks)) == 149
        assert stream.stats is not None
        assert stream.stats.worker_pid == pids["a"]
        wait_for("c is gone", lambda: not is_alive(pids["c"]))
        wait_for("b's old worker is gone", lambda: not is_alive(pids["b"]))
        assert [m.name for m in client.status().models] == ["a", "b", "d"]


def test_running_request_finishes_old_and_waiting_one_gets_new_settings(
    make_daemon: MakeDaemon,
) -> None:
    """A changed model: what runs ends in the old worker, what waited runs in the new one."""
    daemon = make_daemon({"a": {"chunks": 60}}, active_requests_per_worker=1)
    told: list[str] = []
    with daemon.client() as client:
        old = pid_of(client, "a")
        running = client.generate("a", "x")
        chunks = iter(running)
        next(chunks)
        waiting = client.generate(
            "a", "x", on_event=lambda e: told.append(e.waits_for if isinstance(e, Accepted) else "")
        )
        wait_for("it waits", lambda: client.status().models[0].queued == 1)
        write(daemon, {"a": "max_tokens = 5"})
        answer = client.reload()
        assert "1 running request may take 60 s to finish" in answer.models[0].reason
        wait_for("the new state", lambda: client.status().models[0].state == "draining")
        assert stats_pid(running) == old
        assert stats_pid(waiting) != old
        assert any("configuration has changed" in sentence for sentence in told)


def test_drain_of_a_changed_model_is_bounded(make_daemon: MakeDaemon) -> None:
    """A request that does not finish is cut off with a sentence; the model then answers anew."""
    daemon = make_daemon({"a": LONG})
    with daemon.client() as client:
        chunks = iter(client.generate("a", "x"))
        next(chunks)
        write(daemon, {"a": "max_tokens = 5"}, drain_timeout_s=0.5)
        client.reload()
        with pytest.raises(DflashError, match="configuration has changed") as caught:
            for _ in chunks:
                pass
        assert caught.value.code is ErrorCode.cancelled
        assert caught.value.retryable
        assert next(iter(client.generate("a", "x")))


def test_removed_model_refuses_who_waits_and_finishes_who_runs(make_daemon: MakeDaemon) -> None:
    """Removed: queued requests fail as not_found, running ones end well, the row goes last."""
    daemon = make_daemon({"a": {"chunks": 60}, "b": {}}, active_requests_per_worker=1)
    with daemon.client() as client:
        running = client.generate("a", "x")
        chunks = iter(running)
        next(chunks)
        waiting = client.generate("a", "x")
        wait_for("it waits", lambda: client.status().models[0].queued == 1)
        write(daemon, {"b": ""})
        assert changes(client) == {"b": "kept", "a": "removed"}
        for generation in (waiting, client.generate("a", "x")):
            with pytest.raises(DflashError, match="removed from the configuration") as caught:
                generation.wait()
            assert caught.value.code is ErrorCode.not_found
        running.wait()
        wait_for("a is gone", lambda: [m.name for m in client.status().models] == ["b"])
        wait_for("its worker is gone", lambda: not daemon.worker_pids())
        assert [w.name for w in client.status().workers] == ["b"]


def test_model_removed_and_added_again_while_it_drains(make_daemon: MakeDaemon) -> None:
    """Back before it has left: the running request ends in the old worker, new ones get the new."""
    daemon = make_daemon({"a": {"chunks": 80}})
    with daemon.client() as client:
        running = client.generate("a", "x")
        chunks = iter(running)
        next(chunks)
        write(daemon, {})
        assert changes(client) == {"a": "removed"}
        write(daemon, {"a": "max_tokens = 7"})
        assert changes(client) == {"a": "added"}
        late = client.generate("a", "x")
        assert stats_pid(running) != stats_pid(late)


def test_what_only_the_supervisor_uses_changes_in_place(make_daemon: MakeDaemon) -> None:
    """pinned and its like: the worker goes on, with its pid."""
    daemon = make_daemon({"a": {}})
    with daemon.client() as client:
        pid = pid_of(client, "a")
        write(daemon, {"a": "pinned = true\nidle_ttl_s = 600\nplacement = 'strict'"})
        answer = client.reload()
        assert [(m.change, m.reason) for m in answer.models] == [("adjusted", "it stays loaded")]
        assert pid_of(client, "a") == pid


def test_model_moves_to_a_group(make_daemon: MakeDaemon) -> None:
    """Another group: the model is served by that group's worker, whose others go on."""
    daemon = make_daemon({"a": {}, "b": {}})
    write(daemon, {"a": "group = 'g'", "b": ""})
    with daemon.client() as client:
        client.reload()
        group = pid_of(client, "a")
        alone = pid_of(client, "b")
        write(daemon, {"a": "group = 'g'", "b": "group = 'g'"})
        assert changes(client) == {"a": "kept", "b": "replaced"}
        assert pid_of(client, "b") == group
        wait_for("the old worker is gone", lambda: not is_alive(alone))
        assert [w.name for w in client.status().workers] == ["g"]
        write(daemon, {"a": "group = 'g'", "b": ""})
        assert changes(client) == {"a": "kept", "b": "replaced"}
        assert pid_of(client, "b") not in (group, alone)
        assert pid_of(client, "a") == group


def test_limit_changes_live(make_daemon: MakeDaemon) -> None:
    """A new limit of the queue holds for the next request."""
    daemon = make_daemon({"a": LONG}, active_requests_per_worker=1)
    with daemon.client() as client:
        chunks = iter(client.generate("a", "x"))
        next(chunks)
        write(daemon, {"a": ""}, queued_requests_per_model=1)
        assert [key.key for key in client.reload().daemon] == ["queued_requests_per_model"]
        kept = [client.generate("a", "x") for _ in range(2)]
        with pytest.raises(DflashError) as caught:
            kept[1].wait()
        assert caught.value.code is ErrorCode.overloaded


@pytest.mark.parametrize("text", ["[models.a]\ntarget = 'fake'\ndrat = 1", "[models", "\udce9"])
def test_unusable_file_changes_nothing_and_says_why(make_daemon: MakeDaemon, text: str) -> None:
    """A broken file: the command and the log say what is wrong; everything runs on."""
    daemon = make_daemon({"a": {}})
    with daemon.client() as client:
        pid = pid_of(client, "a")
        daemon.config.write_text(text, errors="surrogateescape")
        result = ctl(daemon, "reload")
        assert result.returncode == 5
        assert str(daemon.config) in result.stderr
        daemon.signal(signal.SIGHUP)
        logged(daemon, "config_refused", 2)
        [problem] = client.status().problems
        assert f"{daemon.config} is refused" in problem
        assert pid_of(client, "a") == pid
        daemon.config.unlink()
        assert "cannot be read" in ctl(daemon, "reload").stderr
        os.mkfifo(daemon.config)
        assert "no regular file" in ctl(daemon, "reload").stderr
        assert pid_of(client, "a") == pid


def test_dry_run_and_diff_tell_and_change_nothing(make_daemon: MakeDaemon) -> None:
    """What would change is shown as it would happen, of the daemon's file and of another one."""
    daemon = make_daemon({"a": {}, "b": {}})
    with daemon.client() as client:
        pid = pid_of(client, "a")
        write(daemon, {"a": "max_tokens = 5", "b": ""}, ping_interval_s=2)
        other = daemon.home / "other.toml"
        daemon.config.rename(other)
        write(daemon, {"a": "block_tokens = 4", "c": ""})
        dry = ctl(daemon, "reload", "--dry-run")
        assert dry.returncode == 0
        assert "would change" in dry.stdout
        assert "block_tokens: unset → 4; it is unloaded now" in dry.stdout
        assert [line.split()[:2] for line in dry.stdout.splitlines()[2:]] == [
            ["a", "replaced"],
            ["c", "added"],
            ["b", "removed"],
        ]
        diff = ctl(daemon, "config", "check", str(other), "--diff")
        assert "max_tokens: 512 → 5" in diff.stdout
        assert "ping_interval_s: 1 → 2" in diff.stdout
        assert "(1 model unchanged)" in diff.stdout
        assert pid_of(client, "a") == pid
        assert [m.name for m in client.status().models] == ["a", "b"]


def test_directories_need_a_restart_and_it_is_said(make_daemon: MakeDaemon) -> None:
    """A new runtime_dir is not taken: command and log say so, and the old one serves on."""
    daemon = make_daemon({"a": {}})
    text = daemon.config.read_text()
    daemon.config.write_text(text.replace(str(daemon.state_dir), str(daemon.home / "elsewhere")))
    result = ctl(daemon, "reload")
    assert result.returncode == 0
    assert "NOT in effect: it needs a restart of dflashd" in result.stderr
    assert "state_dir" in result.stderr
    logged(daemon, "config_keys_ignored keys=state_dir")
    assert model(daemon, "a") is not None


def test_watched_file_is_reloaded_when_it_changes(make_daemon: MakeDaemon) -> None:
    """watch_config: a replaced file is taken without a word; a broken one is refused once."""
    daemon = make_daemon({"a": {}})
    with daemon.client() as client:
        write(daemon, {"a": ""}, watch_config=True)
        client.reload()
        pid = pid_of(client, "a")
        write(daemon, {"a": "", "b": ""}, watch_config=True)
        wait_for("b is known", lambda: len(client.status().models) == 2)
        daemon.config.write_text("[models")
        logged(daemon, "config_refused")
        write(daemon, {"a": ""}, watch_config=False)
        wait_for("b is gone", lambda: len(client.status().models) == 1)
        assert client.status().problems == ()
        write(daemon, {"a": "", "c": ""})
        assert pid_of(client, "a") == pid
        assert daemon.log.read_text().count("config_refused") == 1
        assert changes(client) == {"a": "kept", "c": "added"}


def test_storm_of_reloads_ends_with_the_last_file_and_cuts_nothing(make_daemon: MakeDaemon) -> None:
    """Signals and commands by the dozen: the last file decides, an unchanged stream is whole."""
    daemon = make_daemon({"a": {"chunks": 300}, "b": {}})
    with daemon.client() as client:
        pid = pid_of(client, "a")
        stream = client.generate("a", "x")
        chunks = iter(stream)
        next(chunks)
        outcomes: list[str] = []

        def ask() -> None:
            with daemon.client() as other:
                outcomes.extend(changes(other)["a"] for _ in range(10))

        askers = [threading.Thread(target=ask) for _ in range(3)]
        for asker in askers:
            asker.start()
        for n in range(30):
            write(
                daemon, {"a": "", "b": f"max_tokens = {n % 2 + 1}", **({"c": ""} if n % 3 else {})}
            )
            daemon.signal(signal.SIGHUP)
            pid_of(client, "b")
        for asker in askers:
            asker.join(30)
        assert outcomes == ["kept"] * 30
        write(daemon, {"a": "", "b": "max_tokens = 9"})
        client.reload()
        assert set(changes(client, dry_run=True).values()) == {"kept"}
        assert len(list(chunks)) == 299
        assert stream.stats is not None
        assert stream.stats.worker_pid == pid


def test_reload_gives_a_model_that_was_given_up_another_try(make_daemon: MakeDaemon) -> None:
    """A model that is fatal and then changed is tried again; one that is unchanged is not."""
    broken = {"load_error": ["unsupported", "no such kind"]}
    daemon = make_daemon({"a": broken, "b": broken})
    with daemon.client() as client:
        for name in "ab":
            with pytest.raises(DflashError):
                client.generate(name, "x").wait()
        wait_for("both are fatal", lambda: {m.state for m in client.status().models} == {"fatal"})
        write(daemon, {"a": "max_tokens = 5", "b": ""})
        client.reload()
        assert [m.state for m in client.status().models] == ["stopped", "fatal"]


def test_shutdown_during_a_reload_and_reload_during_a_shutdown(make_daemon: MakeDaemon) -> None:
    """While a changed model drains, a stop ends all in order; a reload is refused then."""
    daemon = make_daemon({"a": LONG, "b": {"chunks": 60}}, shutdown_drain_s=2)
    with daemon.client() as client:
        endless = iter(client.generate("a", "x"))
        next(endless)
        finite = iter(client.generate("b", "x"))
        next(finite)
        write(daemon, {"a": "max_tokens = 5"})
        assert changes(client) == {"a": "replaced", "b": "removed"}
        daemon.signal(signal.SIGTERM)
        wait_for("it drains", lambda: client.status().state == "draining")
        with pytest.raises(DflashError) as caught:
            client.reload()
        assert caught.value.code is ErrorCode.shutting_down
        daemon.signal(signal.SIGHUP)
        assert len(list(finite)) == 59
        with pytest.raises(DflashError) as caught:
            for _ in endless:
                pass
        assert caught.value.code is ErrorCode.shutting_down
    assert daemon.wait() == 0
    assert list(daemon.runtime_dir.iterdir()) == []
