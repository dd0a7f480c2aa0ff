"""The daemon's configuration as typed values; ``file.py`` reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, structs

from ...protocol import paths
from ...protocol.messages import Name
from ...protocol.model_names import place_of
from .http_section import FilePath, HttpSection
from .limits import Duration, Limits
from .model_section import ModelSection
from .tcp_section import TcpSection


class DaemonSection(Limits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[daemon]``: where it lives, and every limit of :class:`Limits`."""

    runtime_dir: Annotated[
        FilePath | None, Meta(description="directory of sockets and lock, private to the owner")
    ] = None
    state_dir: Annotated[
        FilePath | None, Meta(description="directory of the workers' logs and of keys")
    ] = None
    watch_config: Annotated[
        bool, Meta(description="reload when the configuration file changes")
    ] = False
    memory_share: Annotated[
        float, Meta(gt=0, le=1, description="of the machine's memory, for all workers together")
    ] = 0.8
    memory_bytes: Annotated[
        Annotated[int, Meta(ge=2**20)] | None,
        Meta(description="that memory as a number of bytes instead"),
    ] = None
    worker_hang_s: Annotated[
        Duration,
        Meta(description="a worker whose engine stands still for so long ends itself, with stacks"),
    ] = 900


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file: ``[daemon]``, ``[models.NAME]`` for each model, ``[http]``, ``[tcp]``."""

    daemon: DaemonSection = DaemonSection()
    models: Annotated[dict[Name, ModelSection], Meta(max_length=1024)] = msgspec.field(
        default_factory=dict[Name, ModelSection]
    )
    http: HttpSection | None = None
    tcp: TcpSection | None = None

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

    @property
    def keys_dir(self) -> Path:
        """Where keys are kept."""
        return keys_dir(self.state_dir)


def keys_dir(state_dir: Path) -> Path:
    """Where the keys are in a state directory."""
    return state_dir / "keys"


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
    http = config.http and structs.replace(
        config.http,
        tls_certificate=as_path(config.http.tls_certificate, base_dir),
        tls_key=as_path(config.http.tls_key, base_dir),
    )
    return structs.replace(config, daemon=section, models=models, http=http)


def as_path(text: str | None, base_dir: Path) -> str | None:
    """An absolute path, counted from ``base_dir``; None stays None."""
    return None if text is None else str(base_dir / Path(text).expanduser())


def as_path_if_written_so(text: str, base_dir: Path) -> str:
    """``./x``, ``../x`` and ``~/x`` are paths; ``owner/name`` may be a repository."""
    return str(base_dir / Path(text).expanduser()) if place_of(text) == "folder" else text
