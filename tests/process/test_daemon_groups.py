"""Groups: models that share a worker come and go one by one."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from dflashd.protocol import Client, DflashError, ErrorCode
from dflashd.protocol.messages import ModelStatus

from .daemon_process import DaemonProcess, is_alive, wait_for

MakeDaemon = Callable[..., DaemonProcess]
GROUPED = {"a": 'group = "g"', "b": 'group = "g"'}


def model_of(client: Client, name: str) -> ModelStatus:
    return next(model for model in client.status().models if model.name == name)


def test_models_of_a_group_load_on_demand_into_one_worker(make_daemon: MakeDaemon) -> None:
    """The second model of a group loads while the first one serves, into the same process."""
    daemon = make_daemon({"a": {"chunks": 150}, "b": {"load_s": 0.5}}, GROUPED)
    with daemon.client() as client:
        first = client.generate("a", "x")
        next(chunks := iter(first))
        assert model_of(client, "b").state == "stopped"
        second = client.generate("b", "x")
        wait_for("b loads", lambda: model_of(client, "b").state == "loading")
        assert client.status().workers[0].state == "busy"
        assert second.wait().text
        assert not first.ended
        assert len(list(chunks)) == 149
        assert second.wait().stats.worker_pid == first.wait().stats.worker_pid
        assert [worker.name for worker in client.status().workers] == ["g"]


def test_retiring_one_of_a_group_leaves_the_other_serving(make_daemon: MakeDaemon) -> None:
    """One model leaves and gives its memory back; the other's stream does not notice."""
    flags = {"a": {"chunks": 150, "memory_bytes": 5000}, "b": {"memory_bytes": 3000}}
    daemon = make_daemon(flags, GROUPED, ping_interval_s=0.1)
    with daemon.client() as client:
        stream = client.generate("a", "x")
        next(chunks := iter(stream))
        client.spawn("b")
        assert client.status().workers[0].memory_bytes == 8000
        client.retire("b")
        assert not stream.ended
        assert model_of(client, "b").state == "stopped"
        assert model_of(client, "b").unloads == 1
        wait_for("measured", lambda: client.status().workers[0].memory_bytes == 5000)
        assert len(list(chunks)) == 149
        assert client.generate("b", "x").wait().stats.worker_pid == stream.wait().stats.worker_pid


def test_last_model_of_a_group_takes_its_worker_along(make_daemon: MakeDaemon) -> None:
    """When the last model leaves, the process ends."""
    daemon = make_daemon({"a": {}, "b": {}}, GROUPED)
    with daemon.client() as client:
        client.spawn("a")
        client.spawn("b")
        pid = client.status().workers[0].pid
        client.retire("a")
        assert daemon.worker_pids() == [pid]
        client.retire("b")
        assert daemon.worker_pids() == []


def test_model_that_is_not_given_back_in_time_costs_the_worker(make_daemon: MakeDaemon) -> None:
    """A worker that ignores an unload is replaced: the model is gone, as was promised."""
    flags = {"a": {}, "b": {"ignore_unload": True}}
    daemon = make_daemon(flags, GROUPED, unload_timeout_s=0.5, backoff_first_s=0.1)
    with daemon.client() as client:
        client.spawn("a")
        client.spawn("b")
        pid = client.status().workers[0].pid
        assert pid
        client.retire("b")
        assert not is_alive(pid)
        assert "did not unload b" in client.status().workers[0].reason
        assert client.generate("a", "x").wait().text


def test_failed_load_is_the_models_own(make_daemon: MakeDaemon) -> None:
    """A model that cannot load leaves the others of its worker alone."""
    daemon = make_daemon({"a": {}, "b": {"load_error": ["unsupported", "no such draft"]}}, GROUPED)
    with daemon.client() as client:
        client.spawn("a")
        pid = client.status().workers[0].pid
        with pytest.raises(DflashError, match="no such draft"):
            client.generate("b", "x").wait()
        assert model_of(client, "b").state == "fatal"
        with pytest.raises(DflashError, match="dflashctl spawn b"):
            client.generate("b", "x").wait()
        assert client.generate("a", "x").wait().stats.worker_pid == pid


def test_conflict_with_placement_auto_serves_both(make_daemon: MakeDaemon) -> None:
    """A model whose hooks conflict with its group's gets a worker of its own, and that is said."""
    daemon = make_daemon({"a": {"chunks": 150}, "b": {"conflicts_with": "a"}}, GROUPED)
    with daemon.client() as client:
        first = client.generate("a", "x")
        next(chunks := iter(first))
        second = client.generate("b", "x").wait()
        assert len(list(chunks)) == 149
        assert second.stats.worker_pid != first.wait().stats.worker_pid
        moved = model_of(client, "b")
        assert (moved.worker, moved.group, moved.state) == ("b", "g", "ready")
        assert "claimed by a" in moved.reason
    assert "placement_changed" in daemon.log.read_text()


def test_conflict_with_placement_strict_is_refused(make_daemon: MakeDaemon) -> None:
    """With placement strict the conflict's own text is the answer."""
    sections = {"a": 'group = "g"', "b": 'group = "g"\nplacement = "strict"'}
    daemon = make_daemon({"a": {}, "b": {"conflicts_with": "a"}}, sections)
    with daemon.client() as client:
        client.spawn("a")
        with pytest.raises(DflashError, match="claimed by a") as caught:
            client.generate("b", "x").wait()
        assert caught.value.code is ErrorCode.hook_conflict
        assert model_of(client, "b").state == "fatal"
        assert model_of(client, "a").state == "ready"


FILES = {"memory_bytes": 2 * 2**20}
"""Makes a model a folder with the config.json and the headers of a real one."""


def test_conflict_told_by_files_moves_the_model_before_it_loads(make_daemon: MakeDaemon) -> None:
    """Two engines for one family: config.json tells, the second is moved, and that is said."""
    sections = {"a": GROUPED["a"], "b": f'{GROUPED["b"]}\nbackend = "warp"'}
    daemon = make_daemon({"a": {"chunks": 150, **FILES}, "b": FILES}, sections)
    with daemon.client() as client:
        first = client.generate("a", "x")
        next(chunks := iter(first))
        second = client.generate("b", "x").wait()
        assert len(list(chunks)) == 149
        assert second.stats.worker_pid != first.wait().stats.worker_pid
        moved = model_of(client, "b")
        text = "a has llama hooked by backend dflash, b wants it hooked by warp"
        assert (moved.worker, moved.state) == ("b", "ready")
        assert moved.reason == f"not in the worker of group g: {text}"
        events = list(client.events())
        (told,) = [e.fields for e in events if e.name == "placement_changed"]
        assert told == {"model": "b", "left": "g", "worker": "b", "reason": text}
        assert "load_failed" not in [e.name for e in events]
        began = [e.fields["worker"] for e in events if e.name == "load_began"]
        assert began == ["g", "b"], "it was loaded into the conflict first"


def test_strict_placement_refuses_what_files_tell(make_daemon: MakeDaemon) -> None:
    """With strict placement the conflict's text is the answer, and nothing is loaded for it."""
    strict = f'{GROUPED["b"]}\nbackend = "warp"\nplacement = "strict"'
    daemon = make_daemon({"a": FILES, "b": FILES}, {"a": GROUPED["a"], "b": strict})
    with daemon.client() as client:
        client.spawn("a")
        for ask in (client.generate("b", "x").wait, lambda: client.spawn("b")):
            with pytest.raises(DflashError, match="a has llama hooked by backend dflash") as no:
                ask()
            assert no.value.code is ErrorCode.hook_conflict
        assert model_of(client, "b").state == "fatal"
        assert "llama" in model_of(client, "b").reason
        assert client.generate("a", "x").wait().text
        began = [e.fields["model"] for e in client.events() if e.name == "load_began"]
        assert began == ["a"]


def test_spawn_moves_a_model_into_a_group(make_daemon: MakeDaemon) -> None:
    """A model is put into a group by command; slots without models disappear."""
    daemon = make_daemon({"a": {}, "b": {}}, {"a": 'group = "g"'})
    with daemon.client() as client:
        client.spawn("a")
        client.spawn("b")
        with pytest.raises(DflashError, match="dflashctl retire b"):
            client.spawn("b", group="g")
        with pytest.raises(DflashError, match="a is a model"):
            client.spawn("b", group="a")
        client.retire("b")
        client.spawn("b", group="g")
        workers = client.status().workers
        assert [(worker.name, worker.models) for worker in workers] == [("g", ("a", "b"))]
        assert daemon.worker_pids() == [workers[0].pid]


def test_group_and_model_of_one_name_never_share_a_worker(make_daemon: MakeDaemon) -> None:
    """An operator's group is left alone by a reload that brings a model of its name."""
    daemon = make_daemon({"b": {"chunks": 150}, "x": {"conflicts_with": "b"}})
    daemon.write_config(["b"])
    with daemon.client() as client:
        client.reload()
        client.spawn("b", group="x")
        stream = client.generate("b", "x")
        next(chunks := iter(stream))
        daemon.write_config(["b", "x"])
        client.reload()
        pid = client.generate("x", "x").wait().stats.worker_pid
        assert not stream.ended
        workers = {w.models: (w.name, w.group, w.pid) for w in client.status().workers}
        assert workers["x",] == ("x:2", None, pid)
        assert workers["b",][:2] == ("x", "x")
        assert workers["b",][2] != pid
        assert len(list(chunks)) == 149
        with pytest.raises(DflashError, match="x is a model"):
            client.spawn("b", group="x")


def test_crash_of_a_group_comes_back_for_who_is_wanted(make_daemon: MakeDaemon) -> None:
    """A lost worker costs its running requests; what is asked for next is loaded again."""
    daemon = make_daemon({"a": {}, "b": {"exit_at_load": 3}}, GROUPED, backoff_first_s=0.1)
    with daemon.client() as client:
        client.spawn("a")
        pid = client.status().workers[0].pid
        assert pid
        with pytest.raises(DflashError, match="exit status 3"):
            client.spawn("b")
        wait_for("it is gone", lambda: not is_alive(pid))
        assert client.generate("a", "x").wait().stats.worker_pid != pid
        assert model_of(client, "b").state == "stopped"


def test_retire_waits_for_its_own_requests_only(make_daemon: MakeDaemon) -> None:
    """A retire in a group drains the requests of that model, and is done when they are."""
    daemon = make_daemon({"a": {"chunks": 100_000}, "b": {"chunks": 40}}, GROUPED)
    with daemon.client() as client:
        endless, own = client.generate("a", "x"), client.generate("b", "x")
        next(stream := iter(endless))
        next(chunks := iter(own))
        retiring = threading.Thread(target=client.retire, args=("b",))
        retiring.start()
        wait_for("b drains", lambda: model_of(client, "b").state == "draining")
        assert len(list(chunks)) == 39
        retiring.join(5)
        assert not retiring.is_alive()
        next(stream)
        endless.cancel()
