"""What is said, what is thought and which tools are called, told apart by mlx-lm's own marks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.chat_templates import muse_spark
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tool_parsers import json_tools
from transformers import AutoTokenizer

from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.protocol.messages import ChatMessage, GenerateBody, Tool, ToolCall
from dflashd.worker.text.channels import Channels, Part, open_channels
from dflashd.worker.text.chat import encode

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content or '' }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments.at }}"
    "{% endfor %}"
    "\n{% endfor %}<assistant>{% if enable_thinking %}<think>{% endif %}"
)
WEATHER = Tool(name="weather", description="Looks out.", parameters='{"type": "object"}')
CALL = '<tool_call>{"name": "weather", "arguments": {"at": "Ulm"}}</tool_call>'


@pytest.fixture(scope="module")
def tokenizer(smollm2_folder: Path) -> TokenizerWrapper:
    """A tokenizer whose model thinks and calls tools, as mlx-lm wraps it."""
    plain: Any = AutoTokenizer.from_pretrained(smollm2_folder)
    plain.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>"])
    plain.chat_template = TEMPLATE
    return TokenizerWrapper(
        plain,
        tool_call_start=json_tools.tool_call_start,
        tool_call_end=json_tools.tool_call_end,
        tool_parser=json_tools.parse_tool_call,
    )


def told(channels: Channels, written: str, step: int) -> Part:
    """All parts of an answer that comes ``step`` characters at a time."""
    part = Part()
    for at in range(0, len(written), step):
        part += channels.push(written[at : at + step])
    return part + channels.finish()


def body(**fields: Any) -> GenerateBody:
    return GenerateBody(messages=(ChatMessage(role="user", content="Hi"),), **fields)


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_thought_speech_and_calls_come_apart_however_they_are_cut(
    tokenizer: TokenizerWrapper, step: int
):
    """Reasoning, text and calls are the same whatever pieces the text arrives in."""
    written = f"<think>Look <b out.</think>I look.{CALL} Done <"
    part = told(Channels(tokenizer, [WEATHER], thinks=False), written, step)
    assert part.reasoning == "Look <b out."
    assert part.text == "I look. Done <"
    (call,) = part.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("weather", {"at": "Ulm"})
    assert call.id.startswith("call_")


@pytest.mark.parametrize("step", [1, 5, 1000])
def test_headers_between_messages_are_not_shown(smollm2_folder: Path, step: int):
    """Where an answer is several messages with a header each (Muse), only their content is told."""
    plain: Any = AutoTokenizer.from_pretrained(smollm2_folder)
    tokenizer = TokenizerWrapper(plain, response_format=muse_spark.RESPONSE_FORMAT)
    written = (
        "to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Yes.<|eom|>"
        "<|start|>assistant to="
    )
    part = told(Channels(tokenizer, [], thinks=False), written, step)
    assert part == Part(text="Yes.", reasoning="Hm.")


def test_a_template_that_opens_the_thinking_is_followed(tokenizer: TokenizerWrapper):
    """When the prompt ends inside the mark, the answer begins as reasoning."""
    asked = body(channels=True, thinking=True)
    channels = open_channels(tokenizer, asked, encode(tokenizer, asked))
    assert channels is not None
    assert told(channels, "Hm.</think>Yes.", 2) == Part(text="Yes.", reasoning="Hm.")


@pytest.mark.parametrize(
    "written",
    [
        "<tool_call>{nonsense}</tool_call>",
        '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "wea',
        "<tool_call>7</tool_call> so",
        '<tool_call>{"name": "weather", "arguments": {"at": NaN}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": {"at": "\\ud800"}}</tool_call>',
    ],
)
def test_a_call_that_cannot_be_read_stays_text(tokenizer: TokenizerWrapper, written: str):
    """Nothing the model wrote is lost: what is no call is shown as it was written."""
    part = told(Channels(tokenizer, [WEATHER], thinks=False), written, 1)
    assert part == Part(text=written)


def test_without_tools_a_call_is_text(tokenizer: TokenizerWrapper):
    """A model that calls what nobody offered has only written something."""
    assert told(Channels(tokenizer, [], thinks=False), CALL, 5) == Part(text=CALL)


def test_nothing_is_told_apart_unasked(tokenizer: TokenizerWrapper):
    """Without ``channels`` the text is all the model wrote."""
    assert open_channels(tokenizer, body(), [1]) is None


def test_tools_and_calls_reach_the_template(tokenizer: TokenizerWrapper):
    """The template sees definitions, earlier calls with parsed arguments, and reasoning."""
    asked = GenerateBody(
        messages=(
            ChatMessage(role="user", content="Weather?"),
            ChatMessage(
                role="assistant",
                content="",
                reasoning="Look.",
                tool_calls=(ToolCall(id="c", name="weather", arguments='{"at": "Ulm"}'),),
            ),
            ChatMessage(role="tool", content="rain", tool_call_id="c"),
        ),
        tools=(WEATHER,),
    )
    text: str = tokenizer.decode(encode(tokenizer, asked))
    assert '"name": "weather"' in text
    assert "<assistant>Look.weatherUlm<tool>rain" in text


def test_what_a_model_cannot_do_is_refused(smollm2_tokenizer: Any):
    """Tools or thinking that a model's template does not know are ``unsupported``, not ignored."""
    with pytest.raises(DflashError, match="tools") as tools:
        open_channels(smollm2_tokenizer, body(tools=(WEATHER,)), [1])
    with pytest.raises(DflashError, match="thinking be switched on") as thinking:
        encode(smollm2_tokenizer, body(thinking=True))
    assert {tools.value.code, thinking.value.code} == {ErrorCode.unsupported}
    assert encode(smollm2_tokenizer, body(thinking=False)) == encode(smollm2_tokenizer, body())


@pytest.mark.parametrize("parameters", ["[]", "{", "[" * 100_000])
def test_a_schema_that_is_none_is_named(tokenizer: TokenizerWrapper, parameters: str):
    """A tool whose parameters are no JSON object is refused by its name."""
    tool = Tool(name="odd", parameters=parameters)
    with pytest.raises(DflashError, match="parameters of odd are not"):
        encode(tokenizer, body(tools=(tool,)))


def test_tokens_of_thought_are_counted(tokenizer: TokenizerWrapper) -> None:
    """Those that open, say and close a thought count, others do not."""
    channels = Channels(tokenizer, (), thinks=False)
    for piece in ("<think>", "It ", "rains.", "</think>", "Take ", "a coat."):
        channels.token(piece)
    assert channels.reasoning_tokens == 4
    opened = Channels(tokenizer, (), thinks=True)
    for piece in ("Hm", "</think>", "Yes"):
        opened.token(piece)
    assert opened.reasoning_tokens == 2
