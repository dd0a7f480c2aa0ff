"""Claims on hooked classes: one owner, counted, loud when others touch them, gone at the end."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models import llama, qwen3_5, qwen3_next

from dflashd.protocol.errors import ErrorCode
from dflashd.worker.errors import DFlashHookConflict
from dflashd.worker.guard import HookGuard


class Attention(nn.Module):
    """Doubles."""

    def __call__(self, x: Any, mask: object = None, cache: object = None) -> Any:
        return x * 2


class Derived(Attention):
    """Inherits its call."""


class Other(nn.Module):
    """Another class."""

    def __call__(self, x: Any) -> Any:
        return x + 1


def block() -> nn.Module:
    args = llama.ModelArgs(
        model_type="llama",
        hidden_size=8,
        num_hidden_layers=1,
        intermediate_size=8,
        num_attention_heads=1,
        rms_norm_eps=1e-5,
        vocab_size=8,
    )
    return llama.TransformerBlock(args)


def owners(guard: HookGuard) -> dict[type, tuple[str, tuple[str, ...]]]:
    return {o.hooked: (o.owner, o.models) for o in guard.owners()}


def test_a_backend_may_claim_again() -> None:
    """Claims of one backend are counted per model; the last release ends them."""
    guard = HookGuard()
    one = guard.claim("ours", "a", [Attention(), Attention(), Other()])
    two = guard.claim("ours", "b", [Attention()])
    assert owners(guard) == {Attention: ("ours", ("a", "b")), Other: ("ours", ("a",))}
    one.check()
    one.release()
    one.release()
    assert owners(guard) == {Attention: ("ours", ("b",))}
    two.check()
    two.release()
    assert not guard.owners()


def test_another_backend_is_refused_whole() -> None:
    """A conflict names class, owner, claimant and models of both, and claims nothing at all."""
    guard = HookGuard()
    lease = guard.claim("ours", "a", [Attention()])
    with pytest.raises(DFlashHookConflict) as caught:
        guard.claim("theirs", "b", [Other(), Attention()])
    assert caught.value.code == ErrorCode.hook_conflict
    for part in ("test_guard.Attention", "ours", "model a", "theirs", "model b"):
        assert part in caught.value.message
    assert owners(guard) == {Attention: ("ours", ("a",))}
    lease.check()
    lease.release()
    guard.claim("theirs", "b", [Other(), Attention()])


def test_families_that_share_a_class_conflict() -> None:
    """One attention class serves Qwen3-Next and Qwen3.5: two backends cannot both have it."""
    shared: Any = vars(qwen3_5)["Attention"]
    assert shared is qwen3_next.Qwen3NextAttention
    guard = HookGuard()
    lease = guard.claim("ours", "a", [shared.__new__(shared)])
    with pytest.raises(DFlashHookConflict, match=r"qwen3_next\.Qwen3NextAttention"):
        guard.claim("theirs", "b", [shared.__new__(shared)])
    lease.release()


def test_a_dropped_lease_is_a_released_one() -> None:
    """A model that is forgotten without being closed leaves no claim."""
    guard = HookGuard()
    lease = guard.claim("ours", "a", [Attention()])
    del lease
    gc.collect()
    assert not guard.owners()


def wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call(self, *args, **kwargs)

    return patched


def test_a_class_patched_before_us_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A patched mlx-lm class is found even if the patch took over the original's name."""
    guard = HookGuard()
    with monkeypatch.context() as patch:
        patch.setattr(llama.TransformerBlock, "__call__", wrapped(llama.TransformerBlock.__call__))
        with pytest.raises(DFlashHookConflict, match=r"TransformerBlock\.__call__ was changed"):
            guard.claim("ours", "a", [block()])
        assert not guard.owners()
    layer = block()
    with monkeypatch.context() as patch:
        patch.setattr(llama, "TransformerBlock", Other)
        with pytest.raises(DFlashHookConflict, match=r"llama\.TransformerBlock was changed"):
            guard.claim("ours", "a", [layer])
    guard.claim("ours", "a", [layer]).release()


def test_a_class_patched_after_us_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of a claimed class is reported to its holders and to whoever comes next."""
    guard = HookGuard()
    lease = guard.claim("ours", "a", [block()])
    with monkeypatch.context() as patch:
        patch.setattr(llama.TransformerBlock, "__call__", wrapped(llama.TransformerBlock.__call__))
        with pytest.raises(DFlashHookConflict, match=r"__call__ was changed .* model a"):
            lease.check()
        with pytest.raises(DFlashHookConflict, match="model b cannot use it"):
            guard.claim("ours", "b", [block()])
        assert owners(guard) == {llama.TransformerBlock: ("ours", ("a",))}
    lease.check()


def test_an_instance_given_another_class_is_reported() -> None:
    """Hooks of others on our own instances are found too."""
    layer = block()
    lease = HookGuard().claim("ours", "a", [layer])
    layer.__class__ = type("Hooked", (type(layer),), {})
    with pytest.raises(DFlashHookConflict, match="Hooked"):
        lease.check()


def test_a_released_lease_cannot_be_used() -> None:
    """Who gave up a claim is told so."""
    lease = HookGuard().claim("ours", "a", [Attention()])
    lease.release()
    with pytest.raises(DFlashHookConflict, match="no longer holds"):
        lease.check()


def tenfold(original: Any, instance: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    return original(instance, x, *args, **kwargs) * 10


@pytest.mark.parametrize("cls", [Attention, Derived])
def test_a_class_patch_serves_only_who_armed_it(cls: type[Attention]) -> None:
    """Un-armed calls, batches and unknown keywords get the original; the last release restores."""
    before = dict(vars(cls))
    module: Any = cls()
    guard = HookGuard()
    one, two = guard.claim("ours", "a", [module]), guard.claim("ours", "b", [module])
    one.patch(cls, "__call__", tenfold)
    two.patch(cls, "__call__", tenfold)
    one.check()
    assert module(1) == 2
    with one.armed():
        assert module(1) == 20
        assert module(1, cache=SimpleNamespace(offset=3)) == 20
        assert module(1, cache=SimpleNamespace(offset=mx.array([3, 4]))) == 2
        with pytest.raises(TypeError):
            module(1, elsewhere=True)
        with two.armed():
            assert module(1) == 20
        assert module(1) == 20
    one.release()
    with two.armed():
        assert module(1) == 20
    two.release()
    assert module(1) == 2
    assert dict(vars(cls)) == before


def test_patches_need_a_claim() -> None:
    """No class is patched without having been claimed."""
    lease = HookGuard().claim("ours", "a", [Other()])
    with pytest.raises(DFlashHookConflict, match="without having claimed"):
        lease.patch(Attention, "__call__", tenfold)


def test_a_patch_over_ours_is_left_but_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other code on top of our patch is reported, not overwritten, and still reaches the class."""
    module = Attention()
    lease = HookGuard().claim("ours", "a", [module])
    lease.patch(Attention, "__call__", tenfold)
    theirs = wrapped(Attention.__call__)
    monkeypatch.setattr(Attention, "__call__", theirs)
    with pytest.raises(DFlashHookConflict, match="was changed"):
        lease.check()
    lease.release()
    assert vars(Attention)["__call__"] is theirs
    assert module(1) == 2
    # What the fixture puts back is our dispatcher, so the test restores the class itself.
    monkeypatch.undo()
    Attention.__call__ = Attention.__call__.__wrapped__  # pyright: ignore[reportFunctionMemberAccess]
    assert module(1) == 2
