"""A loaded model: a target, and a draft that was checked against it."""

from __future__ import annotations

import json
import logging
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
import psutil
from mlx.utils import tree_flatten
from mlx_lm.utils import dequantize_model, load_model as load_mlx_model, load_tokenizer

from ..protocol.errors import DflashError, ErrorCode
from ..protocol.messages import LoadBody, Sampling
from ..protocol.paths import cache_dir
from . import memory
from .cache.identity import CacheIdentity, Fingerprint
from .cache.naming import Origin, fingerprint_of
from .checkpoint import DraftConfig, TargetShape, check_pair, draft_config, is_draft, read_config
from .decoder import BlockDecoder, Decoder, PlainDecoder
from .digest import MEMO, Report, combined_digest, folder_digest
from .draft import load_draft
from .drafting import Drafter
from .features import FeatureTap
from .guard import GUARD, HookGuard, Lease
from .sampling import Sampler
from .sources import resolve
from .targets import adapt, supported_families, why_no_drafts
from .targets.target import BACKEND, Target

log = logging.getLogger(__name__)

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
DEFAULT_CONTEXT_TOKENS = 8192
CPU_ROWS = 4
"""Rows that a CPU's matrix kernels compute at a time."""
FLOAT32_HEADROOM = 1.25
"""Memory a float32 copy must leave for caches, as a factor of its own size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A target with or without a draft, ready to generate. Sizes in bytes and tokens."""

    name: str
    digest: str
    engine: Literal["dflash", "plain"]
    engine_reason: str
    block_tokens: int
    context_tokens: int
    memory_bytes: int
    device: str
    dtype: str
    tokenizer: Any
    eos_token_ids: frozenset[int]
    vocab_size: int
    defaults: LoadBody
    target: Target
    drafter: Drafter | None
    lease: Lease | None
    """Its claims on the classes whose instances it hooks; None: it hooks nothing."""
    identity: CacheIdentity
    fingerprint: Fingerprint

    def decoder(self, engine: Literal["dflash", "plain"], sampler: Sampler) -> Decoder:
        """A fresh decoder for one request.

        Raises:
            DFlashHookConflict: other code changed what this model hooks.
        """
        if engine == "plain" or self.drafter is None or self.lease is None:
            return PlainDecoder(self.target, sampler)
        self.lease.check()
        tap = FeatureTap(self.target.layers, self.drafter.draft.config.target_layer_ids)
        return BlockDecoder(self.target, self.drafter, tap, sampler, self.block_tokens)

    def close(self) -> None:
        """Give up its claims; it decodes no more blocks."""
        if self.lease is not None:
            self.lease.release()


def load_model(name: str, body: LoadBody, report: Report, guard: HookGuard = GUARD) -> Model:
    """Load what ``body`` names. Claims on hooked classes apart, which ``close`` of the model gives
    up, nothing outside the returned value is changed; after a failure no claim is left.

    Raises:
        DflashError: not_found, unsupported, load_failed, hook_conflict or out_of_memory, in one
            sentence.
    """
    with _typed_errors(name), ExitStack() as on_failure:
        target_folder = resolve(body.target, report, "target")
        draft_folder, why_plain = None, _why_plain(body)
        if body.draft and not why_plain:
            draft_folder = resolve(body.draft, report, "draft")
        # What the configurations alone rule out is refused before any weights are read.
        context_tokens = _context_tokens(body, _target_config(target_folder, body))
        shape = draft_config(read_config(draft_folder), str(body.draft)) if draft_folder else None
        digests = _digests(target_folder, draft_folder, report)
        module, config = load_mlx_model(target_folder, lazy=True)
        dtype = _compute_dtype(module, body)
        target = adapt(module, config)
        drafter, lease = None, None
        if draft_folder and shape:
            found = _check_target(target, config, shape, body)
            shape = replace(shape, vocab_size=found.vocab_size)
            lease = guard.claim(BACKEND, name, _hooked(target, shape))
            on_failure.callback(lease.release)
            draft = load_draft(draft_folder, shape, dtype)
            drafter = Drafter(target, draft, _proposed_tokens(draft_folder, shape.vocab_size))
        modules = [module, *([drafter.draft] if drafter else [])]
        _evaluate(modules, drafter, report)
        tokenizer = load_tokenizer(target_folder, eos_token_ids=config.get("eos_token_id"))
        dtype_name = str(dtype or "as stored").rpartition(".")[2]
        origin = Origin(
            target_config=config, draft_folder=draft_folder, draft_shape=shape, dtype=dtype_name
        )
        model = Model(
            name=name,
            digest=combined_digest(*digests),
            engine="dflash" if drafter else "plain",
            engine_reason=why_plain,
            block_tokens=_block_tokens(body, drafter),
            context_tokens=context_tokens,
            memory_bytes=_memory_bytes(modules, drafter),
            device=str(mx.default_device().type).rpartition(".")[2],
            dtype=dtype_name,
            tokenizer=tokenizer,
            eos_token_ids=frozenset(tokenizer.eos_token_ids),
            vocab_size=_vocab_size(config, tokenizer),
            defaults=body,
            target=target,
            drafter=drafter,
            lease=lease,
            identity=CacheIdentity(name=name, target_digest=digests[0], draft_digest=digests[1]),
            fingerprint=fingerprint_of(origin, tokenizer, body.prefill_chunk_tokens),
        )
        _warm_up(model, report)
        on_failure.pop_all()
    return model


def _hooked(target: Target, shape: DraftConfig) -> list[nn.Module]:
    """The instances that decoding in blocks hooks: tapped layers, and what undoing needs."""
    return [target.layers[i] for i in shape.target_layer_ids] + target.hooked


def _digests(target: Path, draft: Path | None, report: Report) -> tuple[str, str | None]:
    """Which weights these are: the target's digest and the draft's."""
    memo = cache_dir() / MEMO
    drafted = folder_digest(draft, report, memo) if draft else None
    return folder_digest(target, report, memo), drafted


def _warm_up(model: Model, report: Report) -> None:
    """One prompt and one cycle: kernels are compiled now, and a model that cannot run fails now."""
    report("warm-up", 0, 1, "cycles")
    decoder = model.decoder(model.engine, Sampler(Sampling(), Sampling()))
    anchor = decoder.first([0, 0])
    decoder.cycle(anchor, model.block_tokens)
    report("warm-up", 1, 1, "cycles")


def _why_plain(body: LoadBody) -> str:
    """Why the model decodes plainly; empty where it does not."""
    if body.draft is None:
        return "no draft is configured for this model"
    return "block_tokens is 1, which leaves nothing to draft" if body.block_tokens == 1 else ""


def _target_config(folder: Path, body: LoadBody) -> dict[str, Any]:
    config = read_config(folder)
    if is_draft(config):
        raise DflashError(
            ErrorCode.load_failed,
            f"target {body.target} is a DFlash draft, not a model; put it under 'draft' and name "
            "the model it was made for as 'target'",
        )
    return config


def _compute_dtype(module: nn.Module, body: LoadBody) -> mx.Dtype | None:
    """Cast ``module`` (lazily) to the dtype it is to compute in; None leaves it as stored.

    CPUs are several times slower at anything but dense float32, so there ``auto`` means float32
    where that fits.
    """
    if body.dtype == "keep":
        return None
    if body.dtype == "auto":
        if mx.default_device().type != mx.DeviceType.cpu:
            return None
        needed = _float32_bytes(module) * FLOAT32_HEADROOM
        available = psutil.virtual_memory().available
        if needed > available:
            log.warning("dtype kept reason=memory needed=%d available=%d", needed, available)
            return None
    dtype = DTYPES["float32" if body.dtype == "auto" else body.dtype]
    # Scales first: dequantising in their float16 would round every weight once more.
    module.set_dtype(mx.float32)
    dequantize_model(module)
    module.set_dtype(dtype)
    return dtype


def _float32_bytes(module: nn.Module) -> int:
    """Size of all weights as dense float32."""
    packed = 0
    for _, part in module.named_modules():
        if "scales" in part and hasattr(part, "bits"):
            packed += part.weight.size * (32 // part.bits - 1)
    return 4 * (packed + sum(array.size for _, array in _parameters(module)))


def _check_target(
    target: Target, config: dict[str, Any], shape: DraftConfig, body: LoadBody
) -> TargetShape:
    if not target.supports_drafts:
        raise DflashError(
            ErrorCode.unsupported,
            f"target {body.target} is {why_no_drafts(config)}; "
            f"supported are models of the families {supported_families()}",
        )
    found = _target_shape(body, target)
    check_pair(shape, found, str(body.draft))
    return found


def _proposed_tokens(folder: Path, vocab_size: int) -> mx.array | None:
    """The tokens this draft proposes at all, if its folder limits them to the frequent ones."""
    file = folder / "frequent_tokens.json"
    if not file.exists():
        return None
    tokens: list[int] = json.loads(file.read_text())
    if not tokens or not all(type(t) is int and 0 <= t < vocab_size for t in tokens):
        raise DflashError(
            ErrorCode.load_failed, f"{file} must be a list of token ids below {vocab_size}"
        )
    return mx.array(sorted(set(tokens)), dtype=mx.uint32)


def _target_shape(body: LoadBody, target: Target) -> TargetShape:
    probe = target.embed(mx.array([[0]]))
    return TargetShape(
        name=body.target,
        hidden_size=probe.shape[-1],
        vocab_size=target.head(probe).shape[-1],
        num_layers=len(target.layers),
    )


def _evaluate(modules: list[nn.Module], drafter: Drafter | None, report: Report) -> None:
    """Bring the weights into memory, a layer at a time so that progress shows."""
    parts: list[Any] = [layer for module in modules for layer in _layers(module)]
    for done, part in enumerate(parts):
        report("weights", done, len(parts), "layers")
        mx.eval(part.parameters())
    mx.eval([module.parameters() for module in modules], drafter.arrays if drafter else [])
    report("weights", len(parts), len(parts), "layers")


def _layers(module: Any) -> list[nn.Module]:
    return module.layers


def _block_tokens(body: LoadBody, drafter: Drafter | None) -> int:
    """The configured block, else the checkpoint's, on a CPU cut to whole groups of rows.

    A CPU's matrix kernels take rows in fours: a fifth costs about as much as four more.
    """
    if drafter is None:
        return 1
    trained = drafter.draft.config.block_tokens
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    whole = trained // CPU_ROWS * CPU_ROWS if on_cpu and trained > CPU_ROWS else trained
    return body.block_tokens or whole


def _context_tokens(body: LoadBody, config: dict[str, Any]) -> int:
    text: dict[str, Any] = config.get("text_config", config)
    longest = int(text.get("max_position_embeddings") or DEFAULT_CONTEXT_TOKENS)
    if body.context_tokens and body.context_tokens > longest:
        raise DflashError(
            ErrorCode.bad_request,
            f"context_tokens {body.context_tokens} is more than the {longest} tokens that "
            f"{body.target} was made for",
        )
    return body.context_tokens or longest


def _vocab_size(config: dict[str, Any], tokenizer: Any) -> int:
    text: dict[str, Any] = config.get("text_config", config)
    return int(text.get("vocab_size") or len(tokenizer))


def _parameters(module: nn.Module) -> list[tuple[str, mx.array]]:
    return tree_flatten(module.parameters())  # pyright: ignore[reportReturnType]


def _memory_bytes(modules: list[nn.Module], drafter: Drafter | None) -> int:
    arrays = [array for module in modules for _, array in _parameters(module)]
    arrays += drafter.arrays if drafter else []
    return sum(array.nbytes for array in arrays)


_UNTYPED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What reading a folder that others made can end in: mlx-lm takes its fields as they come."""


@contextmanager
def _typed_errors(name: str) -> Generator[None]:
    """Whatever mlx, mlx-lm or the file system says, as one sentence with a code."""
    try:
        yield
    except DflashError:
        raise
    except _UNTYPED as error:
        log.exception("load_failed model=%s", name)
        code = ErrorCode.out_of_memory if memory.ran_out(error) else ErrorCode.load_failed
        raise DflashError(code, f"model {name} cannot be loaded: {_said(error)}") from None


def _said(error: Exception) -> str:
    """One line, with the type where the text alone may tell nothing (``KeyError('x')``)."""
    text = " ".join(str(error).split())[:1500]
    telling = isinstance(error, OSError | RuntimeError | ValueError) and text
    return text if telling else f"{type(error).__name__} {text}".rstrip()
