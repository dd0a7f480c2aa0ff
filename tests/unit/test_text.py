from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from dflashd.worker.text.stream import TextStream, token_bytes

VOCABULARY = 49152
BYTE_TOKENS = range(17, 252)
"""The embedded tokenizer's single bytes, valid UTF-8 or not."""

token_lists = st.lists(
    st.integers(0, VOCABULARY - 1) | st.sampled_from(BYTE_TOKENS), min_size=1, max_size=40
)


def cut(tokens: Sequence[int], sizes: Sequence[int]) -> list[Sequence[int]]:
    """``tokens`` in pieces of the given sizes, the last one taking the rest."""
    pieces: list[Sequence[int]] = []
    at = 0
    for size in sizes:
        pieces.append(tokens[at : at + size])
        at += size
    return [*pieces, tokens[at:]]


def shown(stream: TextStream, pieces: Sequence[Sequence[int]]) -> list[str]:
    return [*(stream.push(piece) for piece in pieces), stream.finish()]


def expected(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The definition, slowly: the stop string that ends first wins, the longest of those."""
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            longest = max(ended, key=len)
            return text[: end - len(longest)], longest
    return text, None


class WordTokenizer:
    """Not byte-level: joins words with spaces, drops a leading one, falls back to bytes."""

    WORDS = ("▁Hello", "▁world", "!", "ing", "▁", *(f"<0x{byte:02X}>" for byte in range(256)))

    def decode(self, tokens: Sequence[int], clean_up_tokenization_spaces: bool = True) -> str:
        data = b""
        for token in tokens:
            word = self.WORDS[token]
            data += bytes([int(word[3:5], 16)]) if word.startswith("<0x") else word.encode()
        text = data.decode("utf-8", "replace").replace("▁", " ")
        return text.removeprefix(" ")


@given(tokens=token_lists, sizes=st.lists(st.integers(0, 6), max_size=40))
def test_any_tokens_in_any_pieces(smollm2_tokenizer: Any, tokens: list[int], sizes: list[int]):
    """The pieces joined are the tokenizer's own text, for any tokens and any grouping."""
    pieces = shown(TextStream(smollm2_tokenizer), cut(tokens, sizes))
    assert "".join(pieces) == smollm2_tokenizer.decode(tokens)


# The tokenizer lacks a few bytes: some control characters and the planes from 4 on.
characters = st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs", "Cc"])


@given(text=st.text(characters, max_size=60), sizes=st.lists(st.integers(0, 6), max_size=60))
def test_any_text_survives(smollm2_tokenizer: Any, text: str, sizes: list[int]):
    """Text of any language comes out as it went in, and no piece holds half a character."""
    tokens = smollm2_tokenizer.encode(text)
    pieces = shown(TextStream(smollm2_tokenizer), cut(tokens, sizes))
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces if "\ufffd" not in text)


@given(
    text=st.text(alphabet="ab😀", max_size=40),
    stops=st.lists(st.text(alphabet="ab😀", min_size=1, max_size=5), max_size=4),
    sizes=st.lists(st.integers(0, 6), max_size=40),
)
@example(text="aaab", stops=["aab"], sizes=[])
@example(text="ababac", stops=["abac"], sizes=[1, 1, 1])
@example(text="xab", stops=["b", "ab"], sizes=[])
@example(text="abc", stops=["abcd", "bc"], sizes=[1])
@settings(max_examples=300)
def test_stop_strings_in_any_pieces(
    smollm2_tokenizer: Any, text: str, stops: list[str], sizes: list[int]
):
    """Stop strings that span, overlap or begin one another are found, however the text comes."""
    stream = TextStream(smollm2_tokenizer, stops)
    pieces = shown(stream, cut(smollm2_tokenizer.encode(text), sizes))
    assert ("".join(pieces), stream.stopped) == expected(text, stops)


def test_an_emoji_over_several_tokens_comes_whole(smollm2_tokenizer: Any):
    """A character of several tokens is shown with its last one, not before and not later."""
    tokens = smollm2_tokenizer.encode("😀!")
    assert len(tokens) > 2
    stream = TextStream(smollm2_tokenizer)
    pieces = [stream.push([token]) for token in tokens]
    assert pieces == [*[""] * (len(tokens) - 2), "😀", "!"]


def test_invalid_bytes_are_replaced_only_when_certain(smollm2_tokenizer: Any):
    """A byte that may still become a character waits; one that cannot is replaced at once."""
    first_of_two, never, letter = (
        smollm2_tokenizer.convert_tokens_to_ids(x) for x in ("Ã", "Ģ", "a")
    )
    stream = TextStream(smollm2_tokenizer)
    assert stream.push([first_of_two]) == ""
    assert stream.push([letter]) == "\ufffda"
    assert stream.push([never]) == "\ufffd"
    assert stream.push([first_of_two]) == ""
    assert stream.finish() == "\ufffd"


def test_a_leading_space_is_kept(smollm2_tokenizer: Any):
    """The space a first token begins with belongs to the text."""
    stream = TextStream(smollm2_tokenizer)
    assert stream.push(smollm2_tokenizer.encode(" Paris")) == " Paris"


def test_a_stop_inside_a_run_ends_the_text(smollm2_tokenizer: Any):
    """Tokens committed after the stop string in the same run are not shown."""
    tokens = smollm2_tokenizer.encode("one two three four")
    stream = TextStream(smollm2_tokenizer, ["two"])
    assert stream.push(tokens) == "one "
    assert stream.stopped == "two"
    assert stream.push(tokens) == ""
    assert stream.finish() == ""


def test_a_possible_stop_is_held_back_and_released(smollm2_tokenizer: Any):
    """What may begin a stop string waits, and is shown once it turns out to be ordinary."""
    stream = TextStream(smollm2_tokenizer, ["\n\nUser:"])
    held = stream.push(smollm2_tokenizer.encode("Yes.\n\nUse"))
    assert held == "Yes."
    assert stream.push(smollm2_tokenizer.encode("ful")) == "\n\nUseful"
    assert stream.push(smollm2_tokenizer.encode("\n\n")) == ""
    assert stream.finish() == "\n\n"
    assert stream.stopped is None


def test_an_unknown_token_is_no_text(smollm2_tokenizer: Any):
    """A token of a padded vocabulary, which the tokenizer does not know, adds nothing."""
    stream = TextStream(smollm2_tokenizer)
    assert stream.push([VOCABULARY + 5, *smollm2_tokenizer.encode("a")]) + stream.finish() == "a"


def test_an_added_token_is_meant_literally():
    """A token that is no sequence of bytes, such as one with a space, is its own text."""
    written = {0: "<|a b|>", 1: "Ġ!"}
    tokenizer = SimpleNamespace(
        backend_tokenizer=SimpleNamespace(decoder=ByteLevel()), convert_ids_to_tokens=written.get
    )
    assert TextStream(tokenizer).push([0, 1]) == "<|a b|> !"


@given(tokens=st.lists(st.integers(0, 4), max_size=40), sizes=st.lists(st.integers(0, 6)))
def test_other_tokenizers_agree_with_their_decode(tokens: list[int], sizes: list[int]):
    """A tokenizer that is not byte-level is followed through its decode, leading space and all."""
    tokenizer = WordTokenizer()
    assert "".join(shown(TextStream(tokenizer), cut(tokens, sizes))) == tokenizer.decode(tokens)


def test_other_tokenizers_do_not_split_characters():
    """Byte tokens of such a tokenizer wait for the whole character too."""
    tokenizer = WordTokenizer()
    tokens = [0, *(5 + byte for byte in "€".encode()), 2]
    stream = TextStream(tokenizer)
    assert [stream.push([token]) for token in tokens] == ["Hello", "", "", "€", "!"]


def test_what_single_tokens_write_is_what_they_write_together(smollm2_tokenizer: Any):
    """The bytes told with log-probabilities join to the text, a word's leading space included."""
    vocabulary = {"<unk>": 0, "▁the": 1, "▁cat": 2, "s": 3, "<0xE2>": 4, "<0x82>": 5, "<0xAC>": 6}
    backend = Tokenizer(BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1),
        ]
    )
    pieces = PreTrainedTokenizerFast(tokenizer_object=backend)
    written = b"".join(token_bytes(pieces, token) for token in (1, 2, 3, 4, 5, 6))
    assert written == " the cats€".encode()
    tokens = smollm2_tokenizer.encode(" the cats€")
    assert b"".join(token_bytes(smollm2_tokenizer, token) for token in tokens) == written


@pytest.mark.parametrize("tokenizer_kind", ["byte-level", "other"])
@pytest.mark.parametrize("kind", ["words", "invalid"])
def test_cost_is_linear(smollm2_tokenizer: Any, tokenizer_kind: str, kind: str):
    """Four times the tokens take about four times as long, not sixteen, even for garbage."""
    word, invalid = (17, 251) if tokenizer_kind == "byte-level" else (0, 5 + 0xFF)
    tokenizer = smollm2_tokenizer if tokenizer_kind == "byte-level" else WordTokenizer()
    token = word if kind == "words" else invalid

    def seconds(count: int) -> float:
        stream = TextStream(tokenizer, ["a stop that never comes"])
        start = time.process_time()
        for _ in range(count):
            stream.push([token])
        stream.finish()
        return time.process_time() - start

    few = min(seconds(1000) for _ in range(3))
    many = min(seconds(4000) for _ in range(3))
    assert many < 9 * few
