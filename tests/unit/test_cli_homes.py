"""Every command of ``dflashctl`` has a home that can be imported."""

from __future__ import annotations

import argparse
from importlib import import_module

import pytest

from dflashd.supervisor.cli.parser import HOMES, TOPICS


@pytest.mark.parametrize(("command", "home"), HOMES.items())
def test_each_command_is_found_where_it_is_said_to_be(command: str, home: str) -> None:
    """A command is imported when it is chosen: a mistake in it must not wait until then."""
    assert callable(getattr(import_module(f"dflashd.supervisor.cli.{home}"), command))


def test_each_command_is_made_alone() -> None:
    """What a command line chooses is made with its own topic only, not with all others."""
    for add, names in TOPICS.items():
        made = argparse.ArgumentParser().add_subparsers()
        add(made)
        assert sorted(made.choices) == sorted(names)
