"""The HTTP gateway as the daemon keeps it: its command, and what it cannot start without."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence

from .config_source import ConfigSource
from .gateway.settings import GatewaySettings, written
from .keys import http_keys
from .keys.watched import WatchedKeys
from .processes.companion import Companion
from .processes.workers import Processes

NAME = "_http"
"""No model may be called so: the names of log files are apart."""


def gateway_process(
    configs: ConfigSource, processes: Callable[[Sequence[str]], Processes]
) -> Companion | None:
    """The process, not started yet; None where there is no ``[http]``.

    ``processes`` makes the owner of processes with a given command.
    """
    config = configs.current
    http = config.http
    if http is None:
        return None
    settings = GatewaySettings(
        runtime_dir=str(config.runtime_dir), keys_dir=str(config.keys_dir), http=http
    )
    keys = WatchedKeys(config.keys_dir / http_keys.NAME, http_keys.http_keys)

    def lacks() -> str:
        _ = keys.look()
        return "" if keys.keys or not http.asks_for_keys else keys.problem or http_keys.NO_KEY

    return Companion(
        NAME,
        processes((sys.executable, "-P", "-m", "dflashd.supervisor.gateway", written(settings))),
        lambda: configs.current.daemon,
        random.random,
        address=http.url,
        lacks=lacks,
    )
