"""Loads a model from what its configuration names; what another model holds is not loaded again."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.utils import load_config, load_model as load_mlx_model, load_tokenizer

from ...protocol.messages import LoadBody, Sampling
from ..cache.identity import CacheIdentity, text_digest
from ..cache.naming import Origin, config_digest, fingerprint_of
from ..checkpoints.digest import combined_digest, tokenizer_digest
from ..checkpoints.draft_config import DraftConfig
from ..checkpoints.fields import text_fields
from ..checkpoints.folders import Checkpoint, Checkpoints, find
from ..checkpoints.weights import cast, dtype_name, evaluate, fits_float32, wanted_dtype
from ..decoding.draft_weights import load_draft
from ..decoding.drafting import Drafter
from ..decoding.sampling import Sampler
from ..errand import Errand, Progress
from ..hooks.guard import GUARD
from ..hooks.lease import Lease
from ..hooks.model_guard import ModelGuard
from ..machine.free_memory import free_bytes
from ..targets import adapt
from ..targets.target import BACKEND, Target
from .load_errors import typed_errors
from .model import Model
from .pairing import block_tokens, block_tokens_limit, check_target, proposed_tokens
from .shared import Gathering, LoadedDraft, LoadedTarget, LoadedTokenizer, SharedParts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """A draft bound to its target, and the claims that decoding with it needs."""

    shape: DraftConfig
    drafter: Drafter
    lease: Lease


def load_model(
    name: str,
    body: LoadBody,
    report: Progress,
    guard: ModelGuard | None = None,
    shared: SharedParts | None = None,
    *,
    found: Checkpoints | None = None,
) -> Model:
    """Load what ``body`` names, whose files were ``found`` or are looked for now. Claims on hooked
    classes apart, which ``close`` of the model gives up, nothing outside the returned value is
    changed; after a failure no claim is left.

    Weights that a model of ``shared`` holds are not loaded again.

    Raises:
        DflashError: not_found, unsupported, load_failed, hook_conflict or out_of_memory, in one
            sentence.
    """
    guard = guard or ModelGuard(GUARD, BACKEND, name)
    gathering = Gathering(shared if shared is not None else SharedParts())
    with typed_errors(name), guard.undone_on_failure():
        found = found or find(body, Errand(report))
        target = _target(found.target, body, gathering)
        pair = _pair(found, body, target, guard, gathering)
        evaluate([part.arrays for part in gathering.made], report)
        found.check()
        tokenizer = _tokenizer(found.target.folder, target.config, gathering)
        gathering.share()
        model = _model(
            name=name,
            body=body,
            found=found,
            target=target,
            pair=pair,
            tokenizer=tokenizer,
            gathering=gathering,
        )
        _warm_up(model, report)
    return model


def _target(checkpoint: Checkpoint, body: LoadBody, gathering: Gathering) -> LoadedTarget:
    """The target of that checkpoint; a new one's weights are not in memory yet."""
    settings = _settings_digest(checkpoint.folder)

    def key(dtype: mx.Dtype | None) -> Hashable:
        return checkpoint.digest, settings, dtype_name(dtype)

    dtype = wanted_dtype(body.dtype)
    present = gathering.find(LoadedTarget, key(dtype))
    if present is not None:
        return present
    module, config = load_mlx_model(checkpoint.folder, lazy=True)
    if body.dtype == "auto" and dtype is not None and not fits_float32(module, free_bytes()):
        dtype = None

    def make() -> LoadedTarget:
        if dtype is not None:
            cast(module, dtype)
        return LoadedTarget(
            key=key(dtype), module=module, config=config, dtype=dtype, target=adapt(module, config)
        )

    return gathering.make(LoadedTarget, key(dtype), make)


def _settings_digest(folder: Path) -> str:
    """Everything beside the weights that mlx-lm makes a model of."""
    quantisation = folder / "hf_quant_config.json"
    more = quantisation.read_text() if quantisation.exists() else ""
    return text_digest(config_digest(load_config(folder)) + more)


def _pair(
    found: Checkpoints,
    body: LoadBody,
    target: LoadedTarget,
    guard: ModelGuard,
    gathering: Gathering,
) -> _Pair | None:
    """The draft with its target. What cannot work is refused before any weights are read."""
    if found.draft is None or found.shape is None:
        return None
    fits = check_target(target.target, target.config, found.shape, body)
    shape = replace(found.shape, vocab_size=fits.vocab_size)
    lease = guard.claim(_hooked(target.target, shape))
    draft = _draft(found.draft, shape, target.dtype, gathering)
    tokens = proposed_tokens(found.draft.folder, shape.vocab_size)
    vocabulary = None if tokens is None else mx.array(tokens, dtype=mx.uint32)
    drafter = gathering.make(
        Drafter,
        (target.key, draft.key, tokens),
        lambda: Drafter(target.target, draft.module, vocabulary),
    )
    return _Pair(shape=shape, drafter=drafter, lease=lease)


def _draft(
    checkpoint: Checkpoint, shape: DraftConfig, dtype: mx.Dtype | None, gathering: Gathering
) -> LoadedDraft:
    """The draft of that checkpoint, for a target that computes in ``dtype``."""
    key = (checkpoint.digest, text_digest(repr(shape)), dtype_name(dtype))
    return gathering.make(
        LoadedDraft,
        key,
        lambda: LoadedDraft(key=key, module=load_draft(checkpoint.folder, shape, dtype)),
    )


def _hooked(target: Target, shape: DraftConfig) -> list[nn.Module]:
    """The instances that decoding in blocks hooks: tapped layers, and what undoing needs."""
    return [target.layers[i] for i in shape.target_layer_ids] + target.hooked


def _tokenizer(folder: Path, config: dict[str, Any], gathering: Gathering) -> Any:
    eos = config.get("eos_token_id")
    return gathering.make(
        LoadedTokenizer,
        (tokenizer_digest(folder), repr(eos)),
        lambda: LoadedTokenizer(tokenizer=load_tokenizer(folder, eos_token_ids=eos)),
    ).tokenizer


def _model(
    *,
    name: str,
    body: LoadBody,
    found: Checkpoints,
    target: LoadedTarget,
    pair: _Pair | None,
    tokenizer: Any,
    gathering: Gathering,
) -> Model:
    draft_digest = found.draft.digest if found.draft else None
    drafter = pair.drafter if pair else None
    origin = Origin(
        target_config=target.config,
        draft_folder=found.draft.folder if found.draft else None,
        draft_shape=pair.shape if pair else None,
        dtype=dtype_name(target.dtype),
    )
    return Model(
        name=name,
        digest=combined_digest(found.target.digest, draft_digest),
        engine="dflash" if pair else "plain",
        engine_reason=found.why_plain,
        block_tokens=block_tokens(body, drafter),
        block_tokens_limit=block_tokens_limit(body, drafter),
        context_tokens=found.context_tokens,
        memory_bytes=gathering.memory_bytes,
        shared_bytes=gathering.shared_bytes,
        device=str(mx.default_device().type).rpartition(".")[2],
        dtype=dtype_name(target.dtype),
        tokenizer=tokenizer,
        eos_token_ids=frozenset(tokenizer.eos_token_ids),
        vocab_size=text_fields(target.config).whole("vocab_size", len(tokenizer)),
        defaults=body,
        target=target.target,
        drafter=drafter,
        lease=pair.lease if pair else None,
        identity=CacheIdentity(
            name=name, target_digest=found.target.digest, draft_digest=draft_digest
        ),
        fingerprint=fingerprint_of(origin, tokenizer, body.prefill_chunk_tokens),
        parts=gathering.parts,
    )


def _warm_up(model: Model, report: Progress) -> None:
    """One prompt and one cycle: kernels are compiled now, and a model that cannot run fails now."""
    report("warm-up", 0, 1, "cycles")
    decoder = model.decoder(model.engine, Sampler(Sampling(), Sampling()))
    anchor = decoder.first([0, 0])
    decoder.cycle(anchor, model.block_tokens)
    report("warm-up", 1, 1, "cycles")
