"""The daemon's configuration: one TOML file, validated whole before anything starts."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, cast

import msgspec
from msgspec import Meta, Struct, structs

from ..protocol import paths
from ..protocol.messages import CacheSettings, Name, Sampling
from .http_section import HttpSection, why_not
from .limits import Limits
from .model_section import ModelSection

FilePath = Annotated[str, Meta(pattern=r"^[^\0]+$")]


class ConfigError(Exception):
    """The configuration cannot be used; the operator must change it."""


class DaemonSection(Limits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[daemon]``: where it lives, and every limit of :class:`Limits`."""

    runtime_dir: Annotated[
        FilePath | None, Meta(description="directory of sockets and lock, private to the owner")
    ] = None
    state_dir: Annotated[FilePath | None, Meta(description="directory of the workers' logs")] = None
    memory_share: Annotated[
        float, Meta(gt=0, le=1, description="of the machine's memory, for all workers together")
    ] = 0.8
    memory_bytes: Annotated[
        Annotated[int, Meta(ge=2**20)] | None,
        Meta(description="that memory as a number of bytes instead"),
    ] = None


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file: ``[daemon]``, one ``[models.NAME]`` for each model, perhaps ``[http]``."""

    daemon: DaemonSection = DaemonSection()
    models: Annotated[dict[Name, ModelSection], Meta(max_length=1024)] = msgspec.field(
        default_factory=dict[Name, ModelSection]
    )
    http: HttpSection | None = None

    @property
    def runtime_dir(self) -> Path:
        """Where sockets and lock are."""
        chosen = self.daemon.runtime_dir
        return Path(chosen) if chosen else paths.runtime_dir()

    @property
    def state_dir(self) -> Path:
        """Where the workers' logs are."""
        chosen = self.daemon.state_dir
        return Path(chosen) if chosen else paths.state_dir()


_SECTIONS: Mapping[str, type[Struct]] = {
    "daemon": DaemonSection,
    "http": HttpSection,
    "models.*": ModelSection,
    "models.*.sampling": Sampling,
    "models.*.cache": CacheSettings,
}


def load(path: Path) -> Config:
    """Read and check a configuration file. Raises ConfigError with one sentence."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return parse(text, source=str(path), base_dir=path.resolve().parent)


def parse(text: str, *, source: str, base_dir: Path) -> Config:
    """Check configuration text. Relative paths in it count from ``base_dir``.

    Raises ConfigError with one sentence that names ``source``, section and key.
    """
    try:
        raw = tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, or a number beyond what Python reads
        raise ConfigError(f"{source} is not valid TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{source} is not valid TOML: it nests too deep") from error
    refuse_unknown_keys(raw, "", source)
    try:
        config = msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {error}") from error
    if config.http is not None and (reason := why_not(config.http)):
        raise ConfigError(f"{source}: {reason}")
    try:
        return anchored(config, base_dir)
    except RuntimeError as error:  # of expanduser
        raise ConfigError(f"{source}: a path with ~ cannot be used: {error}") from error


def refuse_unknown_keys(table: Mapping[str, object], section: str, source: str) -> None:
    """Raise ConfigError for a key nobody knows, with its section and the nearest known key."""
    known = known_keys(section)
    for key, value in table.items():
        if known is not None and key not in known:
            place = f"in [{section}]" if section else "at the top level"
            close = get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
            raise ConfigError(f"{source}: unknown key {key} {place}; {hint}")
        if isinstance(value, dict):
            inner = f"{section}.{key}" if section else key
            refuse_unknown_keys(cast("dict[str, object]", value), inner, source)


def known_keys(section: str) -> tuple[str, ...] | None:
    """The keys a section may have; None where names are the user's own."""
    if section == "":
        return Config.__struct_fields__
    if section == "models":
        return None
    parts = section.split(".")
    if parts[0] == "models":
        # A model's name may itself contain dots: only what follows it matters.
        inner = f"models.*.{parts[-1]}" if len(parts) > 2 else "models.*"
        return _SECTIONS.get(inner, ModelSection).__struct_fields__
    return _SECTIONS[section].__struct_fields__ if section in _SECTIONS else ()


def anchored(config: Config, base_dir: Path) -> Config:
    """Make every path that is written as a path absolute."""
    section = structs.replace(
        config.daemon,
        runtime_dir=as_path(config.daemon.runtime_dir, base_dir),
        state_dir=as_path(config.daemon.state_dir, base_dir),
    )
    models = {
        name: structs.replace(
            body,
            target=as_path_if_written_so(body.target, base_dir),
            draft=as_path_if_written_so(body.draft, base_dir) if body.draft else None,
            cache=structs.replace(body.cache, disk_dir=as_path(body.cache.disk_dir, base_dir)),
        )
        for name, body in config.models.items()
    }
    return structs.replace(config, daemon=section, models=models)


def as_path(text: str | None, base_dir: Path) -> str | None:
    """An absolute path, counted from ``base_dir``; None stays None."""
    return None if text is None else str(base_dir / Path(text).expanduser())


def as_path_if_written_so(text: str, base_dir: Path) -> str:
    """``./x``, ``../x`` and ``~/x`` are paths; ``owner/name`` may be a repository."""
    is_path = text.startswith(("./", "../", "~")) or text in (".", "..")
    return str(base_dir / Path(text).expanduser()) if is_path else text


def json_schema() -> dict[str, object]:
    """The file's published JSON Schema."""
    return msgspec.json.schema(Config)
