"""From one configuration to another: what stays, what changes in place, what is replaced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import Struct, structs

from ...protocol.messages import KeyChange, LoadBody
from .configuration import Config
from .model_section import ModelSection

Fate = Literal["kept", "adjusted", "replaced", "removed", "added"]

WORKER_KEYS = frozenset({*LoadBody.__struct_fields__, "group"})
"""Keys of a model that its worker was given or was chosen by: another value needs another load."""

RESTART_KEYS = (
    "runtime_dir",
    "state_dir",
    "memory_share",
    "memory_bytes",
    "events_kept",
    "watchers",
    "log_bytes_per_worker",
    "log_bytes",
    "worker_hang_s",
)
"""Keys of ``[daemon]`` that are fixed while it runs: directories, the pool, what is kept."""

UNSET = "unset"

SHOWN_CHARACTERS = 1000
"""Of a value; a path may be longer than anybody reads."""


class ModelPlan(Struct, frozen=True, kw_only=True):
    """What becomes of one model, and because of which keys."""

    name: str
    fate: Fate
    keys: tuple[KeyChange, ...] = ()


class Plan(Struct, frozen=True, kw_only=True):
    """All that differs between two configurations; ``restart`` is left as it was."""

    models: tuple[ModelPlan, ...]
    daemon: tuple[KeyChange, ...]
    restart: tuple[KeyChange, ...]

    def of(self, *fates: Fate) -> tuple[ModelPlan, ...]:
        """The models with one of these fates."""
        return tuple(model for model in self.models if model.fate in fates)


def plan(old: Config, new: Config) -> Plan:
    """What has to be done to go from ``old`` to ``new``; the models in the new file's order."""
    removed = tuple(ModelPlan(name=n, fate="removed") for n in old.models if n not in new.models)
    stay = tuple(model_plan(n, old.models.get(n), section) for n, section in new.models.items())
    before, after = daemon_keys(old, beside=new), daemon_keys(new, beside=old)
    fixed = fixed_keys(before, after)
    return Plan(
        models=(*stay, *removed),
        daemon=tuple(c for c in differences(before, after) if c.key not in fixed),
        restart=tuple(c for c in differences(before, after) if c.key in fixed),
    )


def model_plan(name: str, old: ModelSection | None, new: ModelSection) -> ModelPlan:
    """What becomes of a model that the new configuration has."""
    if old is None:
        return ModelPlan(name=name, fate="added")
    keys = differences(flat(old), flat(new))
    if not keys:
        return ModelPlan(name=name, fate="kept")
    reloads = any(change.key.split(".")[0] in WORKER_KEYS for change in keys)
    return ModelPlan(name=name, fate="replaced" if reloads else "adjusted", keys=keys)


def in_effect(old: Config, new: Config) -> Config:
    """The new configuration with what cannot change while the daemon runs as it was."""
    kept = {key: getattr(old.daemon, key) for key in RESTART_KEYS}
    others = {key: getattr(old, key) for key in other_sections()}
    return structs.replace(new, daemon=structs.replace(new.daemon, **kept), **others)


def daemon_keys(config: Config, *, beside: Config) -> Mapping[str, object]:
    """Every key outside of the models; the directories as they are used."""
    used = {"runtime_dir": str(config.runtime_dir), "state_dir": str(config.state_dir)}
    others: dict[str, object] = {}
    for name in other_sections():
        others |= section_keys(name, getattr(config, name), whole=getattr(beside, name) is None)
    return {**flat(config.daemon), **used, **others}


def section_keys(name: str, section: Struct | None, *, whole: bool) -> dict[str, object]:
    """The keys of a section; none of one that is not there, and ``whole``, what it says, in one."""
    if section is None:
        return {}
    if not whole:
        return {f"[{name}] {key}": value for key, value in flat(section).items()}
    own = {field.name: getattr(section, field.name) for field in structs.fields(section)}
    defaults = {field.name: field.default for field in structs.fields(section)}
    return {f"[{name}]": {key: value for key, value in own.items() if value != defaults[key]}}


def other_sections() -> tuple[str, ...]:
    """Sections that are neither the daemon's nor the models'; nobody can change them live."""
    return tuple(name for name in Config.__struct_fields__ if name not in ("daemon", "models"))


def fixed_keys(*sides: Mapping[str, object]) -> frozenset[str]:
    """The keys that need a restart of the daemon."""
    others = (key for side in sides for key in side if key.startswith("["))
    return frozenset((*RESTART_KEYS, *others))


def differences(old: Mapping[str, object], new: Mapping[str, object]) -> tuple[KeyChange, ...]:
    """The keys whose values differ, both values as a person writes them."""
    return tuple(
        KeyChange(key=key, before=written(old.get(key)), after=written(new.get(key)))
        for key in dict.fromkeys((*old, *new))
        if old.get(key) != new.get(key)
    )


def flat(value: Struct, prefix: str = "") -> dict[str, object]:
    """A section's keys, those of sections inside it with a dot."""
    keys: dict[str, object] = {}
    for name, inner in structs.asdict(value).items():
        if isinstance(inner, Struct):
            keys |= flat(inner, f"{prefix}{name}.")
        else:
            keys[prefix + name] = inner
    return keys


def written(value: object) -> str:
    """A value as it stands in the file."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return UNSET if value is None else msgspec.json.encode(value).decode()[:SHOWN_CHARACTERS]
