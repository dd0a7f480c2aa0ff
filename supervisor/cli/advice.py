"""What to do next about an error, where its own sentence does not say it."""

from __future__ import annotations

import argparse

from ...protocol.errors import DflashError, ErrorCode

NO_DAEMON_ADVICE = "`dflashctl doctor` looks at what may keep it from running"

_BY_CODE = {
    ErrorCode.not_found: "`dflashctl models` lists what is configured",
    ErrorCode.load_failed: "`dflashctl logs {model}` shows more; `dflashctl spawn {model}` tries "
    "again once it is mended",
    ErrorCode.hook_conflict: 'give {model} a group of its own, or placement = "auto"',
    ErrorCode.out_of_memory: "`dflashctl status` shows who holds memory; retire one, or give "
    "{model} a smaller context_tokens or cache",
    ErrorCode.overloaded: "`dflashctl top` shows what is queued",
    ErrorCode.worker_lost: "`dflashctl logs {model}` shows its last words, `dflashctl events` the "
    "reason",
    ErrorCode.worker_restarting: "`dflashctl status` shows why and when it starts again",
    ErrorCode.unauthorised: "`dflashctl` must run as the user who started the daemon",
    ErrorCode.protocol: "client and daemon may be of different versions: `dflashctl --version`, "
    "`dflashctl status`",
    ErrorCode.internal: "`dflashctl events` and `dflashctl logs {model}` show what led to it",
}


def advice_of(error: DflashError, options: argparse.Namespace) -> str:
    """One sentence, or nothing where the error says all there is to say."""
    model: str | None = getattr(options, "model", None)
    advice = _BY_CODE.get(error.code, "")
    if "dflashctl" in error.message or ("{model}" in advice and not model):
        return ""
    return advice.format(model=model)
