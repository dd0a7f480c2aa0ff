"""The gateway as OpenAI's official client sees it."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from .daemon_process import wait_for
from .gateway_process import Gateway

ASK: Any = {"model": "a", "messages": [{"role": "user", "content": "Hi"}]}
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
    }
]

BEHAVIOURS: dict[str, dict[str, Any]] = {
    "words": {"chunks": 3, "text": "word "},
    "letters": {"chunks": 4, "text": "w"},
    "thinker": {"reasoning": "Hm.", "tool_call": True, "finish_reason": "stop", "chunks": 3},
    "umlauts": {"chunks": 2, "text": "ü"},
    "crosses": {"chunks": 2, "text": "x"},
    "breaks": {"fail_after": 2},
    "absent": {"load_error": ["load_failed", "no such file"]},
}


def ask(model: str) -> Any:
    return ASK | {"model": model}


def client_of(gateway: Gateway) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=20)


def test_a_whole_answer(behaving_gateway: Gateway) -> None:
    """Text, finish reason, usage with cached tokens, and our own statistics in one field."""
    client = client_of(behaving_gateway)
    answer = client.chat.completions.create(
        **ask("words"), max_completion_tokens=9, temperature=0, seed=1
    )
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("word word word ", "length")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 3)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3
    assert choice.model_extra is not None
    assert choice.model_extra["dflashd"]["engine"] == "dflash"
    wait_for("it is logged", lambda: str(answer._request_id) in behaving_gateway.log)


def test_a_stream_with_usage_and_choices(behaving_gateway: Gateway) -> None:
    """Every choice streams with its index and ends once; usage comes last and counts them all."""
    client = client_of(behaving_gateway)
    stream = client.chat.completions.create(
        **ask("letters"), n=3, stream=True, stream_options={"include_usage": True}
    )
    texts = ["", "", ""]
    endings: list[int] = []
    last = None
    for chunk in stream:
        last = chunk
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                endings.append(choice.index)
    assert texts == ["wwww"] * 3
    assert sorted(endings) == [0, 1, 2]
    assert last is not None
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (7, 12)


def test_thoughts_and_tools_are_apart(behaving_gateway: Gateway) -> None:
    """Reasoning is not content, and a call ends the turn; streamed and whole alike."""
    client = client_of(behaving_gateway)
    (choice,) = client.chat.completions.create(**ask("thinker"), tools=TOOLS).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "word "
    assert choice.message.model_extra is not None
    assert choice.message.model_extra["reasoning_content"] == "Hm."
    calls_told: Any = choice.message.tool_calls
    (call,) = calls_told
    assert (call.function.name, call.function.arguments) == ("weather", '{"at": "Ulm"}')
    calls: list[Any] = []
    reasoning = ""
    reason = None
    for chunk in client.chat.completions.create(**ask("thinker"), tools=TOOLS, stream=True):
        delta = chunk.choices[0].delta
        reasoning += (delta.model_extra or {}).get("reasoning_content", "")
        calls += delta.tool_calls or ()
        reason = chunk.choices[0].finish_reason or reason
    assert (reasoning, reason, calls[0].index, calls[0].id) == ("Hm.", "tool_calls", 0, "call_1")


def test_logprobs(behaving_gateway: Gateway) -> None:
    """Each token's log-probability and the likeliest others, in both interfaces."""
    client = client_of(behaving_gateway)
    (choice,) = client.chat.completions.create(
        **ask("umlauts"), logprobs=True, top_logprobs=2
    ).choices
    assert choice.logprobs is not None
    content = choice.logprobs.content
    assert content is not None
    first, _ = content
    assert (first.token, first.logprob, first.bytes) == ("ü", -0.5, [0xC3, 0xBC])
    assert [other.token for other in first.top_logprobs] == ["no", "no"]
    older = client.completions.create(model="umlauts", prompt="Hi", logprobs=1).choices[0].logprobs
    assert older is not None
    assert (older.tokens, older.text_offset) == (["ü", "ü"], [0, 1])


def test_older_completions_of_several_prompts(behaving_gateway: Gateway) -> None:
    """Prompts times choices, in order; prompts count once in usage; streams too."""
    client = client_of(behaving_gateway)
    answer = client.completions.create(model="crosses", prompt=["A", "B"], n=2)
    assert [(choice.index, choice.text) for choice in answer.choices] == [
        (n, "xx") for n in range(4)
    ]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (14, 8)
    streamed = client.completions.create(model="crosses", prompt=[1, 2, 3], stream=True)
    assert "".join(c.text for chunk in streamed for c in chunk.choices) == "xx"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required", "tools": TOOLS}, "tool_choice"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"n": 99}, "n"),
        ({"temperature": 99}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"seed": -1}, "seed"),
        ({"extra_body": {"beam_width": 4}}, "beam_width"),
        ({"stop": ["a"] * 17}, "stop"),
    ],
)
def test_what_cannot_be_honoured_is_an_error_that_names_it(
    shared_gateway: Gateway, fields: dict[str, Any], param: str
) -> None:
    """No parameter is taken and ignored: status 400, with the parameter's name."""
    with pytest.raises(openai.BadRequestError) as caught:
        client_of(shared_gateway).chat.completions.create(**ASK, **fields)
    assert caught.value.param == param
    assert param in caught.value.message


def test_neutral_values_ask_for_nothing(shared_gateway: Gateway) -> None:
    """Parameters at their defaults, and labels, are no reason to refuse."""
    answer = client_of(shared_gateway).chat.completions.create(
        **ASK,
        frequency_penalty=0,
        presence_penalty=0.0,
        logit_bias={},
        response_format={"type": "text"},
        parallel_tool_calls=True,
        user="ann",
        metadata={"a": "b"},
        stop=None,
        store=False,
        top_p=1,
    )
    assert answer.choices[0].message.content


def test_models_are_listed_without_loading_any(shared_gateway: Gateway) -> None:
    """Configured models with their state; a model that is not there is a 404."""
    client = client_of(shared_gateway)
    models = client.models.list().data
    assert [model.id for model in models] == ["a", "org/b"]
    assert models[1].model_extra is not None
    assert models[1].model_extra["dflashd"]["state"] == "stopped"
    assert client.models.retrieve("org/b").id == "org/b"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("c")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("model", ["c", "../../etc/passwd", "/models/x", "", "a\nb", "x" * 300])
def test_only_configured_names_are_models(shared_gateway: Gateway, model: str) -> None:
    """A path, a strange name and an unknown name are all the same: no such model."""
    with pytest.raises(openai.NotFoundError) as caught:
        client_of(shared_gateway).chat.completions.create(model=model, messages=ASK["messages"])
    assert caught.value.code == "model_not_found"


def test_a_stream_that_breaks_ends_with_an_error(behaving_gateway: Gateway) -> None:
    """What was said is delivered, then the error; no end that looks like success."""
    client = client_of(behaving_gateway)
    said: list[str] = []

    def read() -> None:
        stream = client.chat.completions.create(**ask("breaks"), stream=True)
        said.extend(chunk.choices[0].delta.content or "" for chunk in stream)

    with pytest.raises(openai.APIError, match="it broke off"):
        read()
    assert "".join(said) == "word word "


def test_an_error_before_the_first_word_has_its_status(behaving_gateway: Gateway) -> None:
    """A stream that never began is an ordinary error: 503, with advice about coming back."""
    with pytest.raises(openai.InternalServerError) as caught:
        client_of(behaving_gateway).chat.completions.create(**ask("absent"), stream=True)
    assert caught.value.status_code == 503
    assert int(caught.value.response.headers["retry-after"]) >= 1
