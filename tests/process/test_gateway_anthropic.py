"""The gateway as Anthropic's official client sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
import pytest

from .daemon_process import wait_for
from .gateway_process import Gateway

ASK: Any = {
    "model": "a",
    "max_tokens": 20,
    "messages": [{"role": "user", "content": "Hi"}],
}
TOOL: Any = {"name": "weather", "input_schema": {"type": "object", "properties": {}}}

BEHAVIOURS: dict[str, dict[str, Any]] = {
    "stops": {"chunks": 2, "finish_reason": "stop", "stop_string": "END"},
    "thinker": {"reasoning": "Hm.", "tool_call": True, "finish_reason": "stop", "chunks": 4},
    "echo": {"echo": True, "chunks": 1},
    "breaks": {"fail_after": 1},
}


def ask(model: str) -> Any:
    return ASK | {"model": model}


def client_of(gateway: Gateway) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=gateway.url, api_key="none", max_retries=0, timeout=20)


def test_a_whole_message(behaving_gateway: Gateway) -> None:
    """Text, why it stopped, and usage where cached tokens are told apart."""
    client = client_of(behaving_gateway)
    message = client.messages.create(**ask("stops"), system="Be brief.", stop_sequences=["END"])
    assert [block.to_dict() for block in message.content] == [
        {"type": "text", "text": "word word "}
    ]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")
    assert message.usage.input_tokens == 4
    assert message.usage.cache_read_input_tokens == 3
    assert message.usage.output_tokens == 2
    assert message.model_extra is not None
    assert message.model_extra["dflashd"]["engine"] == "dflash"
    wait_for("it is logged", lambda: str(message._request_id) in behaving_gateway.log)


def test_a_streams_events_come_in_their_order(behaving_gateway: Gateway) -> None:
    """Thinking, text and a call are blocks one after the other, each begun, filled and ended."""
    client = client_of(behaving_gateway)
    events = list(client.messages.create(**ask("thinker"), tools=[TOOL], stream=True))
    assert [event.type for event in events] == [
        "message_start",
        *("content_block_start", "content_block_delta", "content_block_stop"),
        *("content_block_start", *("content_block_delta",) * 2, "content_block_stop"),
        *("content_block_start", "content_block_delta", "content_block_stop"),
        "message_delta",
        "message_stop",
    ]
    indices = [getattr(event, "index", None) for event in events[1:-2]]
    assert indices == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]


def test_a_stream_accumulates_to_the_message(behaving_gateway: Gateway) -> None:
    """The client's own accumulation gives thoughts, text, the parsed call and the usage."""
    client = client_of(behaving_gateway)
    with client.messages.stream(**ask("thinker"), tools=[TOOL]) as stream:
        message = stream.get_final_message()
    kinds = [block.type for block in message.content]
    assert kinds == ["thinking", "text", "tool_use"]
    call = message.content[2]
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("weather", {"at": "Ulm"})
    assert message.stop_reason == "tool_use"
    assert (message.usage.input_tokens, message.usage.output_tokens) == (4, 4)


def test_turns_of_tools_and_thoughts_go_to_the_model(behaving_gateway: Gateway) -> None:
    """Results of tools become turns of their own; the system part is the first turn."""
    client = client_of(behaving_gateway)
    content: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Look.", "signature": ""},
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"at": "Ulm"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "rain", "is_error": True},
                {"type": "text", "text": "And?", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    message = client.messages.create(
        model="echo", max_tokens=9, system=[{"type": "text", "text": "Be brief."}], messages=content
    )
    block = message.content[0]
    assert block.type == "text"
    assert block.text == ("system=Be brief.|user=Weather?|assistant=|tool=Error: rain|user=And?")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.budget_tokens"),
        ({"tool_choice": {"type": "any"}, "tools": [TOOL]}, "tool_choice"),
        ({"extra_body": {"beam_width": 4}}, "beam_width"),
        ({"extra_body": {"service_tier": "priority"}}, "service_tier"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role"),
    ],
)
def test_what_cannot_be_honoured_is_named(
    shared_gateway: Gateway, fields: dict[str, Any], named: str
) -> None:
    """Status 400 in Anthropic's shape, with the parameter's name."""
    asked: Any = {**ASK, **fields}
    with pytest.raises(anthropic.BadRequestError, match="invalid_request_error") as caught:
        client_of(shared_gateway).messages.create(**asked)
    assert named in str(caught.value)


def test_errors_have_anthropics_shape(behaving_gateway: Gateway) -> None:
    """An unknown model is not_found_error; a stream that breaks ends with an error event."""
    client = client_of(behaving_gateway)
    with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
        client.messages.create(**ask("b"))
    with (
        client.messages.stream(**ask("breaks")) as stream,
        pytest.raises(anthropic.APIError, match="it broke off"),
    ):
        stream.get_final_text()


def test_models_are_listed(shared_gateway: Gateway) -> None:
    """The same list serves this client."""
    models = client_of(shared_gateway).models.list().data
    assert [(model.id, model.display_name) for model in models] == [("a", "a"), ("org/b", "org/b")]


def test_tokens_of_a_prompt_are_counted(make_gateway: Callable[..., Gateway]) -> None:
    """As Anthropic's client asks; the model is loaded for it, and answers nothing else."""
    gateway = make_gateway({"a": {}})
    asked: Any = {"model": "a", "messages": [{"role": "user", "content": "Hi"}], "system": "Be."}
    assert client_of(gateway).messages.count_tokens(**asked).input_tokens == 7
    (model,) = gateway.daemon.status().models
    assert (model.loads, model.completed) == (1, 1)
    with pytest.raises(anthropic.NotFoundError):
        client_of(gateway).messages.count_tokens(model="b", messages=ASK["messages"])
