"""Block decoding under a scripted drafter: it proposes the truth, spoilt where the script says."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache
from numpy.typing import NDArray

from dflashd.protocol.messages import GenerateBody
from dflashd.worker.checkpoints.draft_config import DraftConfig
from dflashd.worker.decoding.acceptance import Proposal
from dflashd.worker.decoding.decoder import BlockDecoder
from dflashd.worker.decoding.draft import DraftModel
from dflashd.worker.decoding.drafting import Drafter
from dflashd.worker.decoding.sampling import Sampler
from dflashd.worker.engine.generation import Generation
from dflashd.worker.engine.model import Model

from ..tiny import VOCAB_TOKENS


class RecordingDraft(DraftModel):
    """A draft that keeps every feature row it is given, in the order of positions."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__(config)
        self.given: list[NDArray[np.float32]] = []

    def extend_context(self, features: mx.array, caches: list[KVCache]) -> None:
        self.given.append(np.array(features[0]))
        super().extend_context(features, caches)


@dataclass(frozen=True, slots=True)
class Cycle:
    """One proposal: block length asked for, and how many proposals are right before one is not."""

    block_tokens: int
    run: int


class ScriptedDrafter(Drafter):
    """Proposes what follows in ``truth``, with one wrong token after each run length in turn.

    Without ``spoil`` all proposals are right.
    """

    def __init__(
        self, model: Model, truth: list[int], seed: int = 0, *, spoil: bool = True
    ) -> None:
        assert model.drafter is not None
        self.recording = RecordingDraft(model.drafter.draft.config)
        super().__init__(model.target, self.recording)
        self.cycles: list[Cycle] = []
        self._truth = truth
        self._spoil = spoil
        self._random = np.random.default_rng(seed)
        self._runs: list[int] = []

    def propose(
        self,
        anchor: int,
        block_tokens: int,
        features: mx.array | None,
        caches: list[KVCache],
        sampler: Sampler,
    ) -> Proposal:
        if features is not None:
            self.recording.extend_context(features, caches)
        at = caches[0].offset
        assert self._truth[at] == anchor, "the context does not end before the anchor"
        proposals = self._truth[at + 1 : at + block_tokens]
        assert len(proposals) == block_tokens - 1
        run = self._next_run(len(proposals))
        if run < len(proposals):
            proposals[run] = (proposals[run] + 1) % VOCAB_TOKENS
        self.cycles.append(Cycle(block_tokens, run))
        return Proposal(mx.array(proposals))

    def _next_run(self, longest: int) -> int:
        """Every length from 0 to all of the block, in a new order each time round."""
        if not self._spoil:
            return longest
        if not self._runs:
            self._runs = list(self._random.permutation(self.recording.config.block_tokens))
        return min(int(self._runs.pop()), longest)


@dataclass(slots=True)
class BlockRun:
    """What a scripted generation did."""

    tokens: list[int]
    cycles: list[Cycle]
    committed: list[int] = field(default_factory=list[int])
    """Tokens each decode step gave."""
    features: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))
    """Feature rows handed to the draft, in order."""


def plain_tokens(model: Model, prompt: list[int], count: int) -> list[int]:
    """``prompt`` and its greedy continuation by ``count`` tokens, decoded plainly."""
    generation = Generation(model, body(prompt, count, speculation="off"))
    return [*prompt, *finish(generation)]


def block_run(model: Model, truth: list[int], prompt_tokens: int, count: int) -> BlockRun:
    """Decode ``count`` tokens behind the first ``prompt_tokens`` of ``truth``, block by block.

    After every step the target's caches must hold all committed tokens but the newest.
    """
    drafter = ScriptedDrafter(model, truth, seed=prompt_tokens)
    scripted = dataclasses.replace(model, drafter=drafter)
    generation = Generation(scripted, body(truth[:prompt_tokens], count))
    decoder = generation._decoder
    assert isinstance(decoder, BlockDecoder)
    run = BlockRun(tokens=[], cycles=drafter.cycles)
    while not generation.finished:
        phase = generation.phase
        output = generation.step()
        if output is None:
            continue
        run.tokens += output.tokens
        if phase == "decode":
            run.committed.append(len(output.tokens))
        held = prompt_tokens + len(run.tokens) - 1
        offsets = {cache.offset for cache in decoder._caches if hasattr(cache, "offset")}
        assert offsets == {held}
    run.features = np.concatenate(drafter.recording.given)
    return run


def finish(generation: Generation) -> list[int]:
    """All tokens of a generation."""
    tokens: list[int] = []
    while not generation.finished:
        output = generation.step()
        tokens += output.tokens if output else ()
    return tokens


def body(prompt: list[int], count: int, **fields: Any) -> GenerateBody:
    return GenerateBody(tokens=tuple(prompt), max_tokens=count, ignore_eos=True, **fields)
