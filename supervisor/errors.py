"""Why the daemon cannot run; each class named by who must act."""

from __future__ import annotations


class ConfigError(Exception):
    """The configuration cannot be used; the operator must change it. One sentence a line."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))


class DaemonError(Exception):
    """The daemon cannot serve; the message says what to do."""


class AlreadyServed(DaemonError):
    """Another daemon serves this directory."""


class UnsafeDirectory(DaemonError):
    """A directory is not private to its owner, or not usable."""


class UnsafeFile(DaemonError):
    """A file with keys is not private to its owner, or not usable."""


class KeyRefused(DaemonError):
    """A key cannot be made, allowed or revoked as asked."""
