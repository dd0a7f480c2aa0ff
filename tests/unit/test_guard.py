"""Claims on hooked classes: one owner, counted, loud when others touch them, gone at the end."""

from __future__ import annotations

import functools
import gc
import importlib
import sys
import threading
import weakref
from collections.abc import Callable
from random import Random
from types import FrameType, SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models import llama, qwen3_5, qwen3_next
from mlx_lm.utils import MODEL_REMAPPING

from dflashd.protocol.errors import DflashError, ErrorCode
from dflashd.worker.errors import DFlashHookConflict
from dflashd.worker.hooks.fingerprint import Fingerprint
from dflashd.worker.hooks.guard import HookGuard, _Claim
from dflashd.worker.hooks.instances import InstanceHooks
from dflashd.worker.hooks.lease import Lease
from dflashd.worker.targets import FAMILIES


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


def test_unrelated_classes_may_have_different_owners() -> None:
    """Two backends work side by side as long as neither hooks what the other's rests on."""
    guard = HookGuard()
    ours = guard.claim("ours", "a", [Attention()])
    theirs = guard.claim("theirs", "b", [Other()])
    assert owners(guard) == {Attention: ("ours", ("a",)), Other: ("theirs", ("b",))}
    ours.release()
    theirs.release()


def test_released_lease_holds_nothing() -> None:
    """A lease that somebody keeps after its release keeps neither instances nor handlers alive."""

    class Handler:
        def __call__(self, original: Any, instance: Any, x: Any) -> Any:
            return original(instance, x)

    module, handler = Attention(), Handler()
    kept = [weakref.ref(module), weakref.ref(handler)]
    lease = HookGuard().claim("ours", "a", [module])
    lease.patch(Attention, "__call__", handler)
    lease.release()
    del module, handler
    gc.collect()
    assert [reference() for reference in kept] == [None, None]
    assert not lease.held


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


def test_call_that_cannot_be_ours_does_not_reach_the_handler() -> None:
    """Keywords that the method does not name were meant for other code; named ones are ours."""
    reached: list[dict[str, Any]] = []

    def handler(original: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
        reached.append(kwargs)
        return original(instance, *args, **kwargs)

    module: Any = Attention()
    lease = HookGuard().claim("ours", "a", [module])
    lease.patch(Attention, "__call__", handler)
    with lease.armed():
        with pytest.raises(TypeError):
            module(1, elsewhere=True)
        assert reached == []
        assert module(x=1, mask=None, cache=None) == 2
        assert reached == [{"x": 1, "mask": None, "cache": None}]
    lease.release()


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


@pytest.mark.parametrize(("first", "second"), [(Attention, Derived), (Derived, Attention)])
def test_a_base_and_what_derives_from_it_have_one_owner(
    first: type[nn.Module], second: type[nn.Module]
) -> None:
    """A patched base changes all that derive from it: that is a conflict too, whoever is first."""
    guard = HookGuard()
    lease = guard.claim("ours", "a", [first()])
    with pytest.raises(DFlashHookConflict, match=r"related to .* ours for model a; theirs"):
        guard.claim("theirs", "b", [second()])
    guard.claim("ours", "b", [second()]).release()
    lease.release()
    guard.claim("theirs", "b", [second()]).release()


def test_a_patched_base_is_no_change_to_its_owner() -> None:
    """A backend may patch a class whose subclass it hooks as well, in any order."""
    base, derived = Attention(), Derived()
    before = [dict(vars(cls)) for cls in (Attention, Derived)]
    guard = HookGuard()
    one = guard.claim("ours", "a", [derived])
    two = guard.claim("ours", "b", [base])
    two.patch(Attention, "__call__", tenfold)
    one.check()
    with two.armed():
        assert (base(1), derived(1)) == (20, 20)
    two.release()
    one.check()
    assert (base(1), derived(1)) == (2, 2)
    one.release()
    assert [dict(vars(cls)) for cls in (Attention, Derived)] == before


def test_a_subclass_hooked_below_a_patch_of_ours() -> None:
    """Our own patch of a class of mlx-lm is not taken for another's when a subclass is claimed."""
    layer = block()
    derived = type("Derived", (llama.TransformerBlock,), {"__module__": llama.__name__})
    guard = HookGuard()
    one = guard.claim("ours", "a", [layer])
    one.patch(llama.TransformerBlock, "__call__", tenfold)
    with pytest.raises(DFlashHookConflict, match=r"llama\.Derived was changed"):
        guard.claim("ours", "b", [derived.__new__(derived)])  # no class of that module's own
    one.release()


def added(original: Any, instance: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    return original(instance, x, *args, **kwargs) + 1


def test_each_model_has_its_own_handler() -> None:
    """Two models of one backend may patch one method, each with a handler of its own."""
    module: Any = Attention()
    guard = HookGuard()
    one, two = guard.claim("ours", "a", [module]), guard.claim("ours", "b", [module])
    one.patch(Attention, "__call__", tenfold)
    two.patch(Attention, "__call__", added)
    with one.armed():
        assert module(1) == 20
        with two.armed():
            assert module(1) == 3
        assert module(1) == 20
    with two.armed():
        assert module(1) == 3
    one.release()
    two.release()


def test_a_released_or_displaced_patch_is_not_run_past() -> None:
    """A request that armed a patch which is gone would run the original without a word: refused."""
    module = Attention()
    guard = HookGuard()
    lease, other = guard.claim("ours", "a", [module]), guard.claim("ours", "b", [module])
    original = vars(Attention)["__call__"]
    lease.patch(Attention, "__call__", tenfold)
    standing = vars(Attention)["__call__"]
    Attention.__call__ = original
    with pytest.raises(DFlashHookConflict, match="was changed"), lease.armed():
        pytest.fail("armed")
    Attention.__call__ = standing
    lease.release()
    with pytest.raises(DFlashHookConflict, match="no longer holds"), lease.armed():
        pytest.fail("armed")
    other.release()
    assert vars(Attention)["__call__"] is original


def test_a_deleted_method_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleting, adding and exchanging members of any kind is seen, before us and after us."""
    guard = HookGuard()
    cls = llama.TransformerBlock
    lease = guard.claim("ours", "a", [block()])
    strange: list[Any] = [
        functools.partial(cls.__call__),
        functools.partialmethod(cls.__call__),
        mx.compile(lambda x: x),
        property(lambda _: None),
        staticmethod(lambda *_: None),
        Other(),
    ]
    for member in strange:
        for name in ("__call__", "extra"):
            layer = block()
            with monkeypatch.context() as patch:
                patch.setattr(cls, name, member, raising=False)
                with pytest.raises(DFlashHookConflict, match=f"TransformerBlock.{name} was chang"):
                    lease.check()
                with pytest.raises(DFlashHookConflict, match=f"TransformerBlock.{name} was chang"):
                    HookGuard().claim("ours", "b", [layer])
    with monkeypatch.context() as patch:
        patch.delattr(cls, "__call__")
        with pytest.raises(DFlashHookConflict, match=r"TransformerBlock\.__call__ was changed"):
            lease.check()
    lease.check()
    lease.release()


def test_what_is_no_method_cannot_be_patched() -> None:
    """A patch of something that is not there, or not a function, changes nothing."""
    before = dict(vars(Attention))
    lease = HookGuard().claim("ours", "a", [Attention()])
    for name in ("nothing", "__doc__", "__dict__"):
        with pytest.raises(TypeError, match="could be patched"):
            lease.patch(Attention, name, tenfold)
    lease.check()
    lease.release()
    assert dict(vars(Attention)) == before


def test_stock_classes_of_mlx_lm_can_all_be_claimed() -> None:
    """No class of the models that can be drafted for is taken for a patched one."""
    guard = HookGuard()
    for family in sorted(FAMILIES):
        module = importlib.import_module(f"mlx_lm.models.{MODEL_REMAPPING.get(family, family)}")
        for cls in [value for value in vars(module).values() if isinstance(value, type)]:
            if cls.__module__ == module.__name__ and issubclass(cls, nn.Module):
                guard.claim("ours", "a", [cls.__new__(cls)]).release()
    assert not guard.owners()


def test_an_instance_rehooked_by_others_is_left_alone() -> None:
    """Between passes it is refused; from within a pass it is kept and reported, ours all gone."""
    layers: list[Any] = [Attention(), Attention()]
    hooks = InstanceHooks([(layer, lambda *_: None) for layer in layers])
    theirs = type("Theirs", (Attention,), {})
    layers[1].__class__ = theirs
    with pytest.raises(DFlashHookConflict, match="Theirs"), hooks.armed():
        pytest.fail("armed")
    assert [type(layer) for layer in layers] == [Attention, theirs]
    layers[1].__class__ = Attention
    with pytest.raises(DFlashHookConflict, match="Theirs"), hooks.armed():
        layers[0].__class__ = theirs
    assert [type(layer) for layer in layers] == [theirs, Attention]
    layers[0].__class__ = Attention
    with pytest.raises(ZeroDivisionError), hooks.armed():
        _fail_after(layers[0], theirs)
    layers[0].__class__ = Attention
    with hooks.armed():
        assert layers[0](1) == 2


def _fail_after(layer: Any, theirs: type) -> None:
    layer.__class__ = theirs
    raise ZeroDivisionError


def test_threads_claim_and_drop_at_once() -> None:
    """Claims, releases, drops, the collector and patches from many threads leave a clean table."""
    guard = HookGuard()
    before = [dict(vars(cls)) for cls in (Attention, Derived)]
    wrong: list[object] = []

    def work(seed: int) -> None:
        random = Random(seed)
        for _ in range(200):
            cls = random.choice([Attention, Derived])
            module: Any = cls()
            lease = guard.claim("ours", f"m{seed}", [module, Other()])
            lease.patch(cls, "__call__", tenfold)
            with lease.armed():
                if module(1) != 20:
                    wrong.append(module)
            if module(1) != 2:
                wrong.append(module)
            if random.random() < 0.5:
                lease.release()
            elif random.random() < 0.2:
                cycle: list[Any] = [lease]
                cycle.append(cycle)
            guard.owners()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    gc.collect()
    assert not wrong
    assert not guard.owners()
    assert [dict(vars(cls)) for cls in (Attention, Derived)] == before


def test_the_collector_may_come_at_any_moment() -> None:
    """A lease that is collected while its own thread is in the guard neither blocks nor breaks."""
    guard = HookGuard()
    kept = guard.claim("ours", "kept", [Other()])
    with guard._entered():
        lease = Lease(guard, "ours", "dropped", [Attention()])
        guard._claims.setdefault(Attention, _Claim("ours", Fingerprint.of(Attention), ["dropped"]))
        del lease
        gc.collect()
        assert Attention in guard._claims, "taken off while somebody was reading the table"
    assert owners(guard) == {Other: ("ours", ("kept",))}
    kept.release()


def test_a_signal_handler_may_look_and_is_told_what_it_may_not() -> None:
    """Code that interrupts a thread inside the guard sees the claims, and is refused loudly where
    it would have to wait for the thread that it interrupted.
    """
    guard = HookGuard()
    seen: list[object] = []

    def handle(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_name == "_admit" and not seen:
            seen.append(guard.owners())
            with pytest.raises(DflashError, match="let it set a flag") as caught:
                guard.claim("ours", "b", [Other()])
            seen.append(caught.value.code)
        return None

    sys.settrace(handle)
    try:
        lease = guard.claim("ours", "a", [Attention()])
    finally:
        sys.settrace(None)
    assert seen == [(), ErrorCode.unsupported]
    assert owners(guard) == {Attention: ("ours", ("a",))}
    lease.release()
    guard.claim("ours", "b", [Other()]).release()
