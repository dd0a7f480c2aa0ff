from __future__ import annotations

import pytest

from dflashd.protocol.model_names import place_of


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("/models/m", "folder"),
        ("./m", "folder"),
        ("../m", "folder"),
        ("~/m", "folder"),
        ("..", "folder"),
        ("owner/name", "hub"),
        ("owner/name@main", "hub"),
        ("owner/name@refs/pr/1", "hub"),
        ("smollm2-135m", "embedded"),
        (".hidden", "embedded"),
        ("a/b/c", None),
        ("a/b/c@d", None),
    ],
)
def test_what_a_name_means_is_in_how_it_is_written(name: str, place: str | None):
    """Worker, daemon and command line read a model's name alike; a revision may hold slashes."""
    assert place_of(name) == place
