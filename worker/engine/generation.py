"""One request being generated, step by step."""

from __future__ import annotations

import time
from typing import Literal

from ...protocol.errors import DflashError, ErrorCode
from ...protocol.messages import ChunkBody, GenerateBody, Logprobs
from ..cache.open import OpenCache
from ..cache.session import CacheSession
from ..decoding.decoder import Decoder
from ..decoding.sampling import Sampler
from ..text.channels import Channels, Part, open_channels
from ..text.chat import encode, turn_borders
from ..text.logprobs import logprobs_of
from ..text.stream import TextStream
from .border import Statistics
from .model import Model

Engine = Literal["dflash", "plain"]

NO_CACHE = OpenCache(manager=None, cuttable=True, reason="off")


class Generation:
    """A request of one model. One step is one prefill chunk or one decode cycle.

    All calls belong to the thread that loaded the model. The request keeps the cache it was
    admitted with, whatever becomes of that cache meanwhile.

    Raises:
        DflashError: bad_request when the prompt does not fit, unsupported when ``speculation`` is
            ``strict`` and the model has no draft.
    """

    def __init__(self, model: Model, body: GenerateBody, cache: OpenCache = NO_CACHE) -> None:
        prompt = encode(model.tokenizer, body, model.vocab_size, model.context_tokens)
        self._limit = _token_limit(model, body, len(prompt))
        self.engine: Engine
        self.engine, self.engine_reason = _engine(model, body)
        self._eos: frozenset[int] = frozenset() if body.ignore_eos else model.eos_token_ids
        self._prompt = prompt
        self._prefilled = 0
        sampler = Sampler(body.sampling, model.defaults.sampling)
        decoder: Decoder = model.decoder(self.engine, sampler, body.block_tokens)
        self._decoder: Decoder | None = decoder
        self._block_tokens = decoder.block_tokens
        needs_turns = cache.manager is not None and not cache.cuttable
        self._session = CacheSession(
            cache.manager,
            decoder,
            prompt,
            chunk_tokens=model.defaults.prefill_chunk_tokens,
            cuttable=cache.cuttable,
            turns=turn_borders(model.tokenizer, body, prompt) if needs_turns else (),
        )
        self._begun = False
        self._sound = True
        """Whether the decoder's state is that of whole steps; an error leaves it in between."""
        decoder.keeps_logits = body.logprobs is not None
        self._logprobs = body.logprobs
        self._tokenizer = model.tokenizer
        self._text = TextStream(model.tokenizer, body.stop)
        self._channels: Channels | None = open_channels(model.tokenizer, body, prompt)
        self._anchor = -1
        self._history: list[int] = []
        """Committed tokens, those that end the request included."""
        self._generated = 0
        self._cycles = 0
        self._committed = 0
        self._prefill_s = 0.0
        self._decode_s = 0.0
        self._finish_reason: Literal["stop", "length"] | None = None

    @property
    def finished(self) -> bool:
        """Whether the last step ended the request."""
        return self._finish_reason is not None

    @property
    def phase(self) -> Literal["prefill", "decode"]:
        """What the next step does."""
        return "prefill" if self._anchor < 0 else "decode"

    def step(self) -> ChunkBody | None:
        """One prefill chunk or one decode cycle; None when it produced no token.

        Raises:
            RuntimeError: the generation is finished or closed, or the device failed.
        """
        if self._decoder is None or self.finished:
            raise RuntimeError("step of a generation that has ended")
        started = time.perf_counter()
        self._sound = False
        if self.phase == "prefill":
            output = self._prefill_step(self._decoder)
            self._prefill_s += time.perf_counter() - started
        else:
            output = self._decode_step(self._decoder)
            self._decode_s += time.perf_counter() - started
        self._sound = True
        return output

    def statistics(self) -> Statistics:
        """Figures so far; ``finish_reason`` is ``length`` for a generation that was cut short."""
        return Statistics(
            finish_reason=self._finish_reason or "length",
            stop_string=self._text.stopped,
            engine=self.engine,
            engine_reason=self.engine_reason,
            block_tokens=self._block_tokens,
            cycles=self._cycles,
            acceptance_length_tokens=self._committed / self._cycles if self._cycles else 0.0,
            prompt_tokens=len(self._prompt),
            cached_tokens=self._session.cached_tokens,
            cache_hit=self._session.hit,
            cache_miss_reason=self._session.miss_reason,
            generated_tokens=self._generated,
            reasoning_tokens=0 if self._channels is None else self._channels.reasoning_tokens,
            prefill_ms=self._prefill_s * 1e3,
            decode_ms=self._decode_s * 1e3,
        )

    def close(self) -> None:
        """Leave what was computed to the cache, and give the rest back; a second call does nothing.

        Also for a request that was cancelled, but not for one whose step failed.
        """
        if self._decoder is not None and self._begun and self._sound:
            self._session.end(self._history)
        self._session.release()
        self._decoder = None

    def _prefill_step(self, decoder: Decoder) -> ChunkBody | None:
        if not self._begun:
            self._begun = True
            logits = self._session.begin()
            self._prefilled = self._session.cached_tokens
            if logits is not None:
                self._anchor = decoder.first_of(logits)
                return self._emit(decoder, (self._anchor,))
        start = self._prefilled
        end = self._session.next_end(start)
        chunk = self._prompt[start:end]
        self._prefilled = end
        if end < len(self._prompt):
            decoder.prefill(chunk)
        else:
            self._anchor = decoder.first(chunk)
        self._session.passed(start, end)
        return None if end < len(self._prompt) else self._emit(decoder, (self._anchor,))

    def _decode_step(self, decoder: Decoder) -> ChunkBody:
        committed = decoder.cycle(self._anchor, self._limit - self._generated)
        self._cycles += 1
        self._committed += len(committed)
        self._anchor = committed[-1]
        return self._emit(decoder, committed)

    def _emit(self, decoder: Decoder, committed: tuple[int, ...]) -> ChunkBody:
        """Take tokens up to the first that ends the request; those behind it never existed."""
        kept: list[int] = []
        part = Part()
        for token in committed:
            self._history.append(token)
            if token in self._eos:
                self._finish_reason = "stop"
                break
            kept.append(token)
            part += self._told_apart(self._text.push((token,)))
            self._generated += 1
            if self._text.stopped is not None:
                self._finish_reason = "stop"
            elif self._generated >= self._limit:
                self._finish_reason = "length"
            if self._finish_reason is not None:
                break
        if self._finish_reason is not None:
            part += self._rest()
        return ChunkBody(
            tokens=tuple(kept),
            text=part.text,
            reasoning=part.reasoning,
            tool_calls=part.tool_calls,
            logprobs=self._logprobs_of(decoder, kept),
        )

    def _told_apart(self, text: str) -> Part:
        return Part(text=text) if self._channels is None else self._channels.token(text)

    def _rest(self) -> Part:
        """What the text's end and the channels' still held back."""
        text = self._text.finish()
        if self._channels is None:
            return Part(text=text)
        return self._channels.push(text) + self._channels.finish()

    def _logprobs_of(self, decoder: Decoder, kept: list[int]) -> tuple[Logprobs, ...]:
        if self._logprobs is None or decoder.chosen_from is None or not kept:
            return ()
        return logprobs_of(decoder.chosen_from, kept, self._logprobs, self._tokenizer)


def _token_limit(model: Model, body: GenerateBody, prompt_tokens: int) -> int:
    """How many tokens may be generated: what was asked for, as far as the context reaches."""
    room = model.context_tokens - prompt_tokens
    if room < 1:
        or_raise = " or raise context_tokens" if model.defaults.context_tokens else ""
        raise DflashError(
            ErrorCode.bad_request,
            f"the prompt has {prompt_tokens} tokens, model {model.name} has a context of "
            f"{model.context_tokens}; shorten it{or_raise}",
        )
    return min(body.max_tokens or model.defaults.max_tokens, room)


def _engine(model: Model, body: GenerateBody) -> tuple[Engine, str]:
    if body.speculation == "off":
        return "plain", "the request asked for speculation off"
    if model.engine == "plain" and body.speculation == "strict":
        raise DflashError(
            ErrorCode.unsupported,
            f"speculation is strict but model {model.name} decodes plainly: {model.engine_reason}",
        )
    return model.engine, model.engine_reason
