from __future__ import annotations

from typing import Any

import pytest
from jinja2 import TemplateError

from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.protocol.messages import ChatMessage, GenerateBody, Tool
from dflashd.worker.text.chat import encode


class PlainTokenizer:
    """A tokenizer without a chat template whose texts begin with a BOS token, number 1."""

    bos_token = "<s>"
    has_chat_template = False

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        words = [1 if word == "<s>" else 7 for word in text.split()]
        return [1, *words] if add_special_tokens else words


def test_messages_become_the_models_own_format(smollm2_tokenizer: Any):
    """A conversation is written as the chat template says, open for the assistant's turn."""
    body = GenerateBody(
        messages=(
            ChatMessage(role="system", content="Be brief."),
            ChatMessage(role="user", content="Hi!"),
        )
    )
    assert smollm2_tokenizer.decode(encode(smollm2_tokenizer, body)) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_prompt_is_taken_as_it_is(smollm2_tokenizer: Any):
    """A raw prompt gets no template: its tokens decode to itself."""
    tokens = encode(smollm2_tokenizer, GenerateBody(prompt="def f(x):\n"))
    assert smollm2_tokenizer.decode(tokens) == "def f(x):\n"


def test_a_prompt_gets_the_beginning_it_needs_once():
    """The tokenizer's BOS is added to a prompt, but not to one that brings it."""
    tokenizer = PlainTokenizer()
    assert encode(tokenizer, GenerateBody(prompt="a b")) == [1, 7, 7]
    assert encode(tokenizer, GenerateBody(prompt="<s> a b")) == [1, 7, 7]


def test_tokens_are_taken_as_they_are():
    """Given tokens pass untouched."""
    assert encode(PlainTokenizer(), GenerateBody(tokens=(5, 1, 5)), vocab_size=6) == [5, 1, 5]


class Unread(PlainTokenizer):
    has_chat_template = True

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        raise AssertionError("it was tokenised")

    def apply_chat_template(self, turns: Any, **options: Any) -> list[int]:
        raise AssertionError("it was rendered")


@pytest.mark.parametrize(
    "body",
    [
        GenerateBody(prompt="x" * 400_000),
        GenerateBody(messages=(ChatMessage(role="user", content="x" * 400_000),)),
        GenerateBody(messages=(ChatMessage(role="user", content="x" * 200_000),) * 2),
        GenerateBody(
            messages=(ChatMessage(role="user", content="x"),),
            tools=(Tool(name="t", parameters='{"a": "' + "x" * 400_000 + '"}'),),
        ),
    ],
)
def test_a_prompt_far_beyond_the_context_is_not_even_read(body: GenerateBody):
    """Tokenising takes seconds a megabyte, in which nobody else is served: it is refused before."""
    with pytest.raises(
        DflashError, match="characters, the model a context of 8192 tokens"
    ) as caught:
        encode(Unread(), body, context_tokens=8192)
    assert caught.value.code is ErrorCode.bad_request
    with pytest.raises(AssertionError, match="it was"):
        encode(Unread(), body, context_tokens=100_000)


def test_a_token_the_model_does_not_have_is_refused():
    """A given token outside the vocabulary is named; it would read foreign memory."""
    with pytest.raises(DflashError, match="token 9 does not exist") as caught:
        encode(PlainTokenizer(), GenerateBody(tokens=(3, 9, 4)), vocab_size=9)
    assert caught.value.code is ErrorCode.bad_request


def test_an_empty_prompt_is_refused(smollm2_tokenizer: Any):
    """A prompt without tokens gives the model nothing to continue."""
    with pytest.raises(DflashError, match="the prompt is empty"):
        encode(smollm2_tokenizer, GenerateBody(prompt=""))


def test_messages_for_a_model_without_a_template_are_refused():
    """A base model says that it takes prompts only."""
    body = GenerateBody(messages=(ChatMessage(role="user", content="Hi"),))
    with pytest.raises(DflashError, match="no chat template") as caught:
        encode(PlainTokenizer(), body)
    assert caught.value.code is ErrorCode.unsupported


def test_a_template_that_refuses_the_roles_is_the_callers_error():
    """What the template raises about the messages reaches the client as bad_request."""

    class Strict(PlainTokenizer):
        has_chat_template = True

        def apply_chat_template(self, turns: Any, *, add_generation_prompt: bool) -> list[int]:
            raise TemplateError("roles must alternate")

    body = GenerateBody(messages=(ChatMessage(role="user", content="Hi"),))
    with pytest.raises(DflashError, match="roles must alternate") as caught:
        encode(Strict(), body)
    assert caught.value.code is ErrorCode.bad_request
