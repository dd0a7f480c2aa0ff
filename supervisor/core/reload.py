"""Changing to another configuration while requests run: nothing that stays the same is touched."""

from __future__ import annotations

from ...protocol.errors import ErrorCode
from ...protocol.messages import ModelChange, ReloadBody
from ..config.differences import ModelPlan
from ..config.model_section import ModelSection
from . import ending, inspecting, keeping, load_failure, placement, residency, retiring, vacancy
from .effects import AdoptConfig
from .events import ConfigRead
from .home import configured
from .life import OUTSIDE, SERVED, Residency
from .records import Model
from .refusals import removed
from .state import State

CHANGED = "the model's configuration has changed"


def report(s: State, event: ConfigRead, *, dry_run: bool) -> ReloadBody:
    """What a reload changes, told before it does."""
    limit_s = event.config.daemon.drain_timeout_s
    return ReloadBody(
        source=event.source,
        dry_run=dry_run,
        models=tuple(
            ModelChange(
                name=model.name,
                change=model.fate,
                reason=reason(s, model, event.config.models.get(model.name), limit_s),
                keys=model.keys,
            )
            for model in event.plan.models
        ),
        daemon=event.plan.daemon,
        restart=event.plan.restart,
    )


def reason(s: State, plan: ModelPlan, section: ModelSection | None, limit_s: float) -> str:
    """What the fate of a model means now, for those who use it."""
    preload = section is not None and section.preload
    loads = "it loads now" if preload else "it loads when it is asked for"
    row = s.models.get(plan.name)
    if plan.fate == "kept":
        return ""
    if plan.fate == "added" or row is None:
        return loads
    outside = row.state in OUTSIDE
    if plan.fate == "adjusted":
        return "" if outside else "it stays loaded"
    running = sum(r.model == row.name for r in s.worker_of(row).active.values())
    first = f"{counted(running, 'running')} may take {limit_s:.0f} s to finish"
    if plan.fate == "removed":
        failed = f"{counted(len(row.queue), 'waiting')} not served" if row.queue else ""
        return ", ".join(filter(None, [first if running else "", failed])) or (
            "it was not loaded" if outside else "it is unloaded now"
        )
    if outside:
        return "it was not loaded"
    return f"{first}, then {loads}" if running else f"it is unloaded now, and {loads}"


def counted(count: int, which: str) -> str:
    """So many requests."""
    return f"{count} {which} request{'' if count == 1 else 's'}"


def apply(s: State, event: ConfigRead, now: float) -> None:
    """Change to a configuration; what has to wait for running requests is concluded later."""
    s.limits = event.config.daemon
    s.emit(AdoptConfig(config=event.config))
    note(s, event)
    for plan in event.plan.models:
        model = s.models.get(plan.name)
        section = event.config.models.get(plan.name)
        if section is None:
            if model is not None:
                remove(s, model, now)
        elif model is None:
            add(s, plan.name, section)
        elif plan.fate in ("replaced", "added"):  # added: it was removed and has not left yet
            replace(s, model, section, now)
        else:
            if section != model.settings:
                model.pinned = section.pinned
            model.settings = section
    order = {name: s.models[name] for name in event.config.models}
    s.models = order | s.models


def note(s: State, event: ConfigRead) -> None:
    """Write down what changes; loudly, what does not."""
    plan = event.plan
    names = {
        fate: " ".join(model.name for model in plan.of(fate))
        for fate in ("adjusted", "replaced", "removed", "added")
    }
    fields = {fate: found for fate, found in names.items() if found}
    if plan.daemon:
        fields["daemon"] = " ".join(change.key for change in plan.daemon)
    s.note("config_reloaded", source=event.source, kept=len(plan.of("kept")), **fields)
    if plan.restart:
        keys = " ".join(change.key for change in plan.restart)
        s.note("config_keys_ignored", keys=keys)


def add(s: State, name: str, section: ModelSection) -> None:
    """A model nobody knew."""
    model = s.add(name, section)
    load_failure.forgive(s, model)  # of its group's worker: it may have been another model's fault
    keeping.adopt(s, model)


def replace(s: State, model: Model, section: ModelSection, now: float) -> None:
    """Other settings for a model: what runs finishes with the old ones, what waits gets the new."""
    model.settings = section
    model.removed = False
    model.apart = ""
    load_failure.forgive(s, model)
    s.changing[model.name] = None
    model.pinned = section.pinned
    # What an operator retired or is retiring, or nobody has asked for, stays out.
    model.summoned = section.preload and model.state not in OUTSIDE and not model.retires
    inspecting.forget(model)
    go(s, model, now)


def remove(s: State, model: Model, now: float) -> None:
    """A model that is not wanted any more: what runs finishes, what waits is refused."""
    model.removed = True
    model.summoned = False
    sentence = removed(model.name)
    s.fail_commands(model.spawns, ErrorCode.not_found, sentence)
    ending.fail_queued(s, model, now, ErrorCode.not_found, sentence)
    s.changing[model.name] = None
    go(s, model, now)


def go(s: State, model: Model, now: float) -> None:
    """Have a model leave its worker as soon as what it computes is done."""
    s.touch(s.worker_of(model))
    model.going = removed(model.name) if model.removed else CHANGED
    if model.state in SERVED:
        model.leaving = 0  # only what runs: whoever waits, waits for what comes
        retiring.drain(s, model, now, s.limits.drain_timeout_s)
    elif model.state is Residency.loading and model.ordered:
        residency.leave(s, model, now)
    elif model.state is Residency.loading:
        vacancy.vacate(s, model)


def conclude(s: State) -> None:
    """Move or forget the models that had to leave their worker first, and have."""
    for name in list(s.changing):
        model = s.models[name]
        if model.state not in OUTSIDE:
            continue
        del s.changing[name]
        if model.removed:
            forget(s, model)
        else:
            placement.move(s, model, configured(name, model.settings))


def forget(s: State, model: Model) -> None:
    """Take the row of a removed model out of the tables."""
    worker = s.worker_of(model)
    worker.models = tuple(name for name in worker.models if name != model.name)
    s.complete_commands(model.retires)
    s.callers.pop(model.name, None)
    del s.models[model.name]
    s.touch(worker)
