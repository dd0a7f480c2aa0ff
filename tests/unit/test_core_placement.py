"""Which slot a model gets: nobody is beside another who was not put there."""

from __future__ import annotations

from typing import Any

import pytest

from dflashd.protocol.errors import ErrorCode
from dflashd.protocol.messages import LoadFailed, Reload, ReloadBody, Reloaded
from dflashd.supervisor.config.configuration import Config, DaemonSection
from dflashd.supervisor.config.differences import in_effect, plan
from dflashd.supervisor.config.model_section import ModelSection
from dflashd.supervisor.core.effects import SendToClient
from dflashd.supervisor.core.events import ConfigRead
from dflashd.supervisor.core.home import LONGEST_STEM, free_name

from .core_bench import CoreBench


class File(CoreBench):
    """The bench with a configuration file that a test writes."""

    def __init__(self, sections: dict[str, dict[str, Any]], **limits: Any) -> None:
        super().__init__(dict.fromkeys(sections, 1.0), 20.0, sections, **limits)
        self.config = configured(sections, **limits)

    def reload(
        self, sections: dict[str, dict[str, Any]], *, dry_run: bool = False, **daemon: Any
    ) -> dict[str, str]:
        """Change to these sections, or look what that would do; what is told of each model."""
        self.sizes |= dict.fromkeys(sections, 1.0)
        config = configured(sections, **daemon)
        self.command(Reload(id=self.new_id(), dry_run=dry_run))
        n, found = self.core.state.last_reading, plan(self.config, config)
        effects = self.give(ConfigRead(n=n, source="f", config=config, plan=found))
        if not dry_run:
            self.config = in_effect(self.config, config)
        told = [e for e in effects if isinstance(e, SendToClient)]
        [body] = [e.body for e in told if isinstance(e.header, Reloaded)]
        assert isinstance(body, ReloadBody)
        return {model.name: model.reason for model in body.models}

    def together(self) -> list[set[str]]:
        """The models of each slot that has any."""
        return [set(w.models) for w in self.core.state.workers.values() if w.models]


def configured(sections: dict[str, dict[str, Any]], **daemon: Any) -> Config:
    models = {n: ModelSection(target=n, **keys) for n, keys in sections.items()}
    return Config(models=models, daemon=DaemonSection(**daemon))


def test_model_that_comes_gets_no_place_in_an_operators_group_of_its_name() -> None:
    """A reload that adds a model called like such a group leaves the group alone."""
    bench = File({"c": {}})
    bench.spawn("c", group="x")
    bench.reload({"c": {}, "x": {}})
    bench.spawn("x")
    assert bench.resident() == {"c", "x"}
    assert bench.together() == [{"c"}, {"x"}]
    assert [w.name for w in bench.core.state.workers.values()] == ["x", "x:2"]


def test_model_that_comes_is_not_beside_one_that_still_leaves_its_groups_worker() -> None:
    """A group is gone from the file, its model still drains, and its name is a model's now."""
    bench = File({"c": {"group": "x"}})
    bench.spawn("c")
    running = bench.generate("c")
    bench.reload({"x": {}})
    bench.spawn("x")
    assert bench.state("c") == "draining"
    assert bench.together() == [{"c"}, {"x"}]
    bench.done(running)
    assert bench.together() == [{"x"}]
    assert bench.resident() == {"x"}


def test_group_that_comes_is_not_beside_a_model_of_its_name_that_still_leaves() -> None:
    """The other way round: the model drains, and its name is a group's now."""
    bench = File({"x": {}})
    bench.spawn("x")
    running = bench.generate("x")
    bench.reload({"c": {"group": "x"}, "d": {"group": "x"}})
    bench.spawn("c")
    bench.spawn("d")
    assert bench.together() == [{"x"}, {"c", "d"}]
    bench.done(running)
    assert bench.together() == [{"c", "d"}]


def test_model_moved_out_by_a_conflict_is_alone_though_its_name_is_a_groups() -> None:
    """Its own worker is its own, whatever an operator called a group."""
    group = {"group": "g"}
    bench = File({"c": group, "e": {}})
    bench.spawn("e", group="d")
    bench.reload({"c": group, "e": {}, "d": {**group, "backend": "other"}})
    bench.spawn("c")
    bench.spawn("d")
    assert bench.together() == [{"c"}, {"e"}, {"d"}]
    assert bench.resident() == {"c", "d", "e"}


def test_conflict_is_not_final_while_others_are_in_the_worker() -> None:
    """Whatever the slot is called, a model that meets a conflict beside others moves out."""
    bench = File({"c": {"group": "g"}, "d": {"group": "g"}})
    bench.spawn("c")
    bench.slow = {"d"}
    bench.spawn("d")
    epoch = bench.core.state.workers["g"].epoch
    conflict = ErrorCode.hook_conflict
    bench.says("g", LoadFailed(epoch=epoch, model="d", code=conflict, message="claimed by c"))
    bench.loaded("d", "d")
    assert bench.resident() == {"c", "d"}
    assert bench.together() == [{"c"}, {"d"}]
    assert "claimed by c" in bench.core.state.models["d"].apart


def test_operators_group_that_the_file_makes_too_is_one_group() -> None:
    """Who asked for a group and who is configured for it are together: both were wished."""
    bench = File({"c": {}})
    bench.spawn("c", group="h")
    bench.reload({"c": {}, "d": {"group": "h"}})
    bench.spawn("d")
    assert bench.together() == [{"c", "d"}]


def test_model_goes_home_when_its_section_changes() -> None:
    """What an operator chose lasts until the file says something new about that model."""
    bench = File({"c": {}, "d": {"group": "h"}})
    bench.spawn("c", group="h")
    bench.reload({"c": {"max_tokens": 3}, "d": {"group": "h"}})
    assert bench.together() == [{"d"}, {"c"}]
    assert bench.core.state.models["c"].apart == ""


@pytest.mark.parametrize("name", ["x", "x" * 128])
def test_names_of_slots_are_unique_and_short_enough(name: str) -> None:
    """A slot's name is its home's, or one that no other slot has."""
    taken = [name, f"{name[:LONGEST_STEM]}:2"]
    assert free_name(name, []) == name
    assert free_name(name, taken) == f"{name[:LONGEST_STEM]}:3"
    assert len(free_name(name, taken)) <= 128
