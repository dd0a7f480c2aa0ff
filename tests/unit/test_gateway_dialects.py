"""Requests and answers of other people's interfaces, without any network."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from anthropic.types.message_count_tokens_params import MessageCountTokensParams as AnthropicCount
from anthropic.types.message_create_params import MessageCreateParamsBase as AnthropicMessage
from msgspec import structs
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as OpenAiChat
from openai.types.completion_create_params import CompletionCreateParamsBase as OpenAiCompletion

from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.protocol.messages import (
    ChunkBody,
    DoneBody,
    ModelStatus,
    ServiceStatus,
    SnapshotBody,
    ToolCall,
)
from dflashd.supervisor.gateway.admission import Admission
from dflashd.supervisor.gateway.asked import Dialect, Whole
from dflashd.supervisor.gateway.dialects.chat import Chat
from dflashd.supervisor.gateway.dialects.chat_question import NEUTRAL as CHAT_NEUTRAL, ChatRequest
from dflashd.supervisor.gateway.dialects.completions import (
    NEUTRAL as COMPLETION_NEUTRAL,
    CompletionRequest,
    Completions,
)
from dflashd.supervisor.gateway.dialects.messages import Messages
from dflashd.supervisor.gateway.dialects.messages_question import (
    NEUTRAL as MESSAGES_NEUTRAL,
    MessagesRequest,
)
from dflashd.supervisor.gateway.dialects.token_count import TokenCount
from dflashd.supervisor.gateway.health import degraded, unready
from dflashd.supervisor.gateway.problem import STATUS, Problem, problem_of

TURN = [{"role": "user", "content": "Hi"}]
CHAT: dict[str, Any] = {"model": "a", "messages": TURN}
ANTHROPIC: dict[str, Any] = {**CHAT, "max_tokens": 5}
CALL = ToolCall(id="c1", name="f", arguments='{"x": 1}')


def stats(**fields: Any) -> DoneBody:
    given: dict[str, Any] = {
        "finish_reason": "stop",
        "engine": "dflash",
        "model": "a",
        "digest": "d",
        "worker_pid": 1,
        "block_tokens": 8,
        "cycles": 2,
        "acceptance_length_tokens": 2.5,
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "generated_tokens": 5,
        "queued_ms": 0.0,
        "load_ms": 0.0,
        "ttft_ms": 1.0,
        "prefill_ms": 1.0,
        "decode_ms": 1.0,
        "memory_bytes": 1,
    }
    return DoneBody(**given | fields)


def options(dialect: Dialect, body: dict[str, Any]) -> dict[str, Any]:
    """What the first generation of a request is asked with."""
    return dict(dialect.read(json.dumps(body).encode()).wanted[0].options)


def events(written: bytes) -> list[Any]:
    """The data of server-sent events."""
    lines = [line for line in written.decode().splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize(
    ("request_type", "neutral", "known"),
    [
        (ChatRequest, CHAT_NEUTRAL, {"prompt_cache_key", "safety_identifier"}),
        (CompletionRequest, COMPLETION_NEUTRAL, set[str]()),
        (MessagesRequest, MESSAGES_NEUTRAL, {"cache_control"}),
    ],
)
def test_no_parameter_is_read_and_dropped(
    request_type: type[msgspec.Struct], neutral: dict[str, Any], known: set[str]
) -> None:
    """Every field of a request is used, or refused unless neutral, or a label that asks nothing."""
    used = {
        *("model", "messages", "prompt", "system", "stream", "stream_options", "n", "stop"),
        *("stop_sequences", "seed", "max_tokens", "max_completion_tokens", "temperature"),
        *("top_p", "top_k", "min_p", "logprobs", "top_logprobs", "tools", "tool_choice"),
        *("thinking", "dflashd", "best_of", "reasoning_effort"),
    }
    labels = {"user", "metadata", *known}
    fields = set(request_type.__struct_fields__)
    assert fields <= used | labels | set(neutral), fields - used - labels - set(neutral)


def parameters(of: type) -> set[str]:
    """All that an official client's method takes."""
    return {name for base in of.__mro__ for name in getattr(base, "__annotations__", {})}


@pytest.mark.parametrize(
    ("dialect", "official", "base"),
    [
        (Chat(), OpenAiChat, CHAT),
        (Completions(), OpenAiCompletion, {"model": "a", "prompt": "x"}),
        (Messages(), AnthropicMessage, ANTHROPIC),
        (TokenCount(), AnthropicCount, CHAT),
    ],
)
def test_every_parameter_of_the_official_clients_is_honoured_or_named(
    dialect: Dialect, official: type, base: dict[str, Any]
) -> None:
    """What they may send is used, asks for nothing, or is refused by an error that names it."""
    honoured = {
        *("model", "messages", "prompt", "system", "stop", "stop_sequences", "seed", "n"),
        *("max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "stream"),
        *("stream_options", "logprobs", "top_logprobs", "tools", "thinking"),
    }
    labels = {"user", "metadata", "prompt_cache_key", "safety_identifier", "cache_control"}
    asked: dict[str, Any] = {
        "response_format": {"type": "json_object"},
        "tool_choice": {"type": "tool", "name": "f"},
        "parallel_tool_calls": False,
        "store": True,
        "echo": True,
        "best_of": 2,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.5,
        "logit_bias": {"1": 1},
        "reasoning_effort": "high",
        "service_tier": "flex",
        "suffix": "x",
        "modalities": ["audio"],
    }
    for name in parameters(official) - honoured - labels:
        with pytest.raises(Problem) as refused:
            dialect.read(json.dumps({**base, name: asked.get(name, {"x": 1})}).encode())
        assert (refused.value.status, refused.value.param) == (400, name)


@pytest.mark.parametrize(
    ("dialect", "body", "param"),
    [
        (Chat(), {"messages": [{**TURN[0], "function_call": {}}]}, "messages[0].function_call"),
        (Chat(), {"messages": [{**TURN[0], "audio": {"id": "x"}}]}, "messages[0].audio"),
        (Chat(), {"messages": [{**TURN[0], "refusal": "no"}]}, "messages[0].refusal"),
        (Chat(), {"messages": [{"role": "user"}]}, "messages[0].content"),
        (Messages(), {"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.display"),
        (
            Messages(),
            {"tools": [{"name": "f", "input_schema": {}, "defer_loading": True}]},
            "tools[0].defer_loading",
        ),
    ],
)
def test_what_stands_inside_is_not_dropped_either(
    dialect: Dialect, body: dict[str, Any], param: str
) -> None:
    """A field of a message or a tool that cannot be honoured is refused by its place."""
    with pytest.raises(Problem) as refused:
        dialect.read(json.dumps({**ANTHROPIC, **body}).encode())
    assert (refused.value.status, refused.value.param) == (400, param)


def test_reasoning_is_told_apart_in_usage() -> None:
    """OpenAI's usage says how many of the answer's tokens were thought."""
    question = Chat().read(json.dumps({**CHAT, "n": 2}).encode())
    wholes = [Whole(chunks=[], stats=stats(reasoning_tokens=count)) for count in (3, 1)]
    usage = json.loads(question.answer(wholes))["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 4}


def test_a_count_asks_for_no_answer() -> None:
    """It reads what makes a prompt, and nothing that would only make an answer."""
    asked = options(TokenCount(), {**CHAT, "system": "s"})
    assert (asked["count_only"], len(asked["messages"])) == (True, 2)
    with pytest.raises(Problem, match="max_tokens"):
        TokenCount().read(json.dumps(ANTHROPIC).encode())


def test_sampling_parameters_are_handed_on() -> None:
    """What is given reaches the daemon under its own name; what is not stays the model's."""
    asked = options(Chat(), {**CHAT, "temperature": 0.5, "top_p": 0.9, "stop": "x", "seed": 3})
    assert (asked["temperature"], asked["top_p"], asked["stop"], asked["seed"]) == (
        0.5,
        0.9,
        "x",
        3,
    )
    assert asked["top_k"] is None
    vendor = {**CHAT, "dflashd": {"speculation": "strict"}, "top_k": 4, "min_p": 0.1}
    asked = options(Chat(), vendor)
    assert (asked["speculation"], asked["top_k"], asked["min_p"]) == ("strict", 4, 0.1)


def test_each_choice_has_a_seed_of_its_own() -> None:
    """n seeded choices differ, and repeat."""
    question = Chat().read(json.dumps({**CHAT, "n": 3, "seed": 5}).encode())
    assert [wanted.options.get("seed") for wanted in question.wanted] == [5, 6, 7]


def test_tool_choice_none_offers_no_tools() -> None:
    """``none`` keeps the tools from the model."""
    tool = {"type": "function", "function": {"name": "f"}}
    assert options(Chat(), {**CHAT, "tools": [tool]})["tools"][0].name == "f"
    assert options(Chat(), {**CHAT, "tools": [tool], "tool_choice": "none"})["tools"] == ()


def test_anthropic_thinking_switches() -> None:
    """``disabled`` switches thinking off, ``adaptive`` leaves it to the template."""
    assert options(Messages(), {**ANTHROPIC, "thinking": {"type": "disabled"}})["thinking"] is False
    assert options(Messages(), {**ANTHROPIC, "thinking": {"type": "adaptive"}})["thinking"] is None


def test_a_broken_chat_stream_has_no_done() -> None:
    """The last event of a stream that failed is the error."""
    writer = Chat().read(json.dumps({**CHAT, "stream": True}).encode()).writer()
    written = writer.begin() + writer.failed(Problem(status=503, code="worker_lost", message="m"))
    assert events(written)[-1]["error"]["type"] == "server_error"
    assert b"[DONE]" not in written


def test_usage_comes_only_when_asked() -> None:
    """Without include_usage no chunk has it; with it, the last one does, and only that."""
    plain = Chat().read(json.dumps({**CHAT, "stream": True}).encode()).writer()
    assert b"usage" not in plain.begin() + plain.end(0, stats()) + plain.close()
    asked = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    writer = Chat().read(json.dumps(asked).encode()).writer()
    told = events(writer.begin() + writer.end(0, stats()) + writer.close())
    assert [each["usage"] is not None for each in told] == [False, False, True]
    assert told[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}


def test_chunks_that_show_nothing_are_not_sent() -> None:
    """A cycle inside a character costs no event, in any dialect."""
    silent = ChunkBody(tokens=(1,), text="")
    asked: list[tuple[Dialect, dict[str, Any]]] = [
        (Chat(), CHAT),
        (Completions(), {"model": "a", "prompt": "x"}),
        (Messages(), ANTHROPIC),
    ]
    for dialect, body in asked:
        assert dialect.read(json.dumps(body).encode()).writer().chunk(0, silent) == b""


def test_anthropic_blocks_are_numbered_in_order() -> None:
    """Text, a call and text again are three blocks, whole and streamed."""
    question = Messages().read(json.dumps(ANTHROPIC).encode())
    said = [
        ChunkBody(tokens=(1,), text="A"),
        ChunkBody(tokens=(2,), text="B", tool_calls=(CALL,)),
        ChunkBody(tokens=(3,), text="C"),
    ]
    writer = question.writer()
    written = b"".join(writer.chunk(0, chunk) for chunk in said) + writer.end(0, stats())
    starts = [each for each in events(written) if each["type"] == "content_block_start"]
    assert [(each["index"], each["content_block"]["type"]) for each in starts] == [
        (0, "text"),
        (1, "tool_use"),
        (2, "text"),
    ]
    whole = json.loads(question.answer([Whole(chunks=said, stats=stats())]))
    assert [block.get("text", block.get("input")) for block in whole["content"]] == [
        "AB",
        {"x": 1},
        "C",
    ]


@pytest.mark.parametrize("code", ErrorCode)
def test_every_error_has_a_status_and_advice(code: ErrorCode) -> None:
    """429 and 503 say when to come back; nothing else does, and clients are told whether to."""
    problem = problem_of(DflashError(code, "why", retryable=True, retry_after_s=2.2))
    assert problem.status in {*STATUS.values(), 503}
    assert ("retry-after" in problem.headers) == (problem.status in (429, 503))
    again = "false" if code is ErrorCode.unauthorised else "true"  # the key stays a wrong one
    assert problem.headers["x-should-retry"] == again
    if "retry-after" in problem.headers:
        assert problem.headers["retry-after"] == "3"
    for dialect in (Chat(), Completions(), Messages()):
        assert b"why" in dialect.error(problem)


def test_admission_counts_by_client() -> None:
    """One client's share and the whole are bounded; leaving gives room again."""
    admission = Admission(2, 1)
    with admission.admitted("a"):
        with pytest.raises(Problem, match="one client"), admission.admitted("a"):
            pass
        with admission.admitted("b"), pytest.raises(Problem, match="2 requests"):
            admission.admitted("c").__enter__()
    assert admission.count == 0


def test_ready_means_that_what_must_be_up_is() -> None:
    """Models that load on demand may be down; one with ``preload`` may not."""

    def seen(state: str, *, preload: bool) -> SnapshotBody:
        model = ModelStatus(
            name="a",
            target="t",
            draft=None,
            worker="a",
            state=state,
            queued=0,
            active=0,
            completed=0,
            loads=0,
            unloads=0,
            preload=preload,
        )
        return SnapshotBody(
            instance="i",
            version="v",
            pid=1,
            uptime_s=1,
            state="serving",
            workers=(),
            models=(model,),
            counters={},
        )

    assert unready(seen("stopped", preload=False)) == []
    assert unready(seen("busy", preload=True)) == []
    assert unready(seen("loading", preload=True)) == ["model a is loading"]


@pytest.mark.parametrize(
    ("state", "closes", "limps"),
    [
        ("running", False, False),
        ("listening", False, False),
        ("waiting", False, True),
        ("doubtful", False, True),
        ("fatal", True, False),
    ],
)
def test_readiness_tells_of_every_way_in(state: str, closes: bool, limps: bool) -> None:
    """A listener that was closed is no readiness; one in doubt is told of, and so is the daemon's
    own trouble.
    """
    tcp = ServiceStatus(
        name="tcp", state=state, pid=None, address="x", restarts=0, reason="a stranger got in"
    )
    body = SnapshotBody(
        instance="i",
        version="v",
        pid=1,
        uptime_s=1,
        state="serving",
        workers=(),
        models=(),
        counters={},
        services=(tcp,),
    )
    told = [f"service tcp is {state}: a stranger got in"]
    assert unready(body) == (told if closes else [])
    assert degraded(body) == (told if limps else [])
    assert degraded(structs.replace(body, services=(), problems=("no disk",))) == ["no disk"]
