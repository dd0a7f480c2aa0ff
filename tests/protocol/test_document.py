"""docs/protocol.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from dflashd.protocol.codec import NESTING_LIMIT
from dflashd.protocol.envelope import BODY_LIMIT_BYTES, HEADER_LIMIT_BYTES, SIGNATURE
from dflashd.protocol.errors import ErrorCode
from dflashd.protocol.messages import (
    BODY_MAY_BE_EMPTY,
    BODY_OF,
    Body,
    CacheSettings,
    ChatMessage,
    Header,
    KeyChange,
    Logprobs,
    MetricFamily,
    MetricSample,
    ModelChange,
    ModelStatus,
    Sampling,
    ServiceStatus,
    TokenLogprob,
    Tool,
    ToolCall,
    WorkerStatus,
)

from .golden import frames
from .strategies import UNIONS

DOCUMENT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
HEADINGS = {
    "FromClient": "Client to supervisor, requests socket",
    "FromControl": "Client to supervisor, control socket",
    "ToClient": "Supervisor to client",
    "FromWorker": "Worker to supervisor",
    "ToWorker": "Supervisor to worker",
}
BODIES: list[type[Body]] = [
    *dict.fromkeys(BODY_OF.values()),
    ChatMessage,
    Tool,
    ToolCall,
    TokenLogprob,
    Logprobs,
    Sampling,
    CacheSettings,
    WorkerStatus,
    ServiceStatus,
    ModelStatus,
    ModelChange,
    KeyChange,
    MetricFamily,
    MetricSample,
]


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table below ``heading``, its head left out."""
    section = re.split(
        r"^#+ ", DOCUMENT.split(f" {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE
    )[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def fields_of(type_: type[msgspec.Struct]) -> list[tuple[str, bool]]:
    """Return each field's name and whether it must be sent."""
    return [(field.encode_name, field.required) for field in msgspec.structs.fields(type_)]


@pytest.mark.parametrize("union", HEADINGS)
def test_every_kind_is_described_where_it_goes(union: str) -> None:
    """Each direction's table has exactly the code's kinds, with their fields and body."""
    described: dict[str, tuple[list[tuple[str, bool]], str]] = {}
    for kind, fields, body, meaning in rows(HEADINGS[union]):
        names = re.findall(r"`([^`]+)`", fields)
        described[kind.strip("`")] = (
            [(name.rstrip("?"), not name.endswith("?")) for name in names],
            body,
        )
        assert len(meaning) > 5
    types: tuple[type[Header], ...] = get_args(UNIONS[union])
    assert list(described) == [str(type_.__struct_config__.tag) for type_ in types]
    for type_, (fields, body) in zip(types, described.values(), strict=True):
        assert fields == fields_of(type_)
        expected = f"`{BODY_OF[type_].__name__}`" if type_ in BODY_OF else "empty"
        assert body == expected + (" or empty" if type_ in BODY_MAY_BE_EMPTY else "")


@pytest.mark.parametrize("type_", BODIES)
def test_every_body_is_described(type_: type[Body]) -> None:
    """Each body's table has exactly the code's fields, and says which must be sent."""
    described = [
        (name.strip("`"), default == "–") for name, _, default in rows(f"`{type_.__name__}`")
    ]
    assert described == fields_of(type_)


def test_every_error_code_is_described() -> None:
    """The error table has exactly the codes of the code."""
    assert [row[0].strip("`") for row in rows("7. Errors")] == [str(code) for code in ErrorCode]


def test_limits_are_the_code_s() -> None:
    """The limits in the document are the ones that are enforced."""
    limits = {row[0]: row[2] for row in rows("2. Envelope")[:3]}
    assert limits["1"] == f"{HEADER_LIMIT_BYTES} bytes"
    assert limits["2"] == f"{BODY_LIMIT_BYTES} bytes"
    assert f"nest at most {NESTING_LIMIT} deep" in DOCUMENT
    assert SIGNATURE.hex(" ") in DOCUMENT


def test_worked_example_is_golden() -> None:
    """The bytes of the worked example are entries of the golden table."""
    example = DOCUMENT.split("## 12. Worked example", 1)[1]
    found: list[bytes] = []
    for block in re.findall(r"```\n(.*?)```", example, flags=re.DOTALL):
        for frame in block.split("\n\n"):
            pairs = re.findall(r"^ *((?:[0-9a-f]{2} ?)+?)(?: {2,}.*)?$", frame, flags=re.MULTILINE)
            found.append(bytes.fromhex(" ".join(pairs)))
    golden = frames()
    assert found == [
        SIGNATURE,
        golden["generate"],
        golden["GenerateBody"],
        SIGNATURE,
        golden["chunk"],
        golden["ChunkBody, full"],
    ]
