"""What ``dflashctl init`` knows of drafts agrees with the engine that runs them."""

from __future__ import annotations

import pytest

from dflashd.supervisor.survey import models, shapes
from dflashd.supervisor.survey.written import name_of
from dflashd.worker.checkpoints import draft_kinds, embedded


def test_supervisor_and_worker_know_the_same_drafts() -> None:
    """A kind of draft that one side learns, the other knows too."""
    assert shapes.DRAFTS == draft_kinds.DRAFT_ARCHITECTURES
    assert set(shapes.OTHER_DRAFTS) == set(draft_kinds.UNSUPPORTED_MARKS)
    assert models.EMBEDDED_TARGET in embedded.TARGETS


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("Qwen/Qwen3-4B", "qwen3-4b"),
        ("z-lab/Qwen3-4B-DFlash-b16", "qwen3-4b"),
        ("mlx-community/Qwen3-4B-4bit-DWQ", "qwen3-4b"),
        ("mlx-community/Qwen3-4B-bf16@abc", "qwen3-4b"),
        ("Qwen/Qwen3-4B-Instruct-2507", "qwen3-4b-instruct-2507"),
        ("smollm2-135m-dflash-1l", "smollm2-135m"),
    ],
)
def test_a_conversion_keeps_its_models_name(spec: str, name: str) -> None:
    """What a conversion or a draft adds to a name is not the model's."""
    assert shapes.base_name(spec) == name


def test_names_are_short_until_they_meet() -> None:
    """The owner comes in only where two repositories would have one name."""
    taken = {"qwen3-4b"}
    assert name_of("Qwen/Qwen3-4B", set()) == "qwen3-4b"
    assert name_of("other/Qwen3-4B", taken) == "other--qwen3-4b"
