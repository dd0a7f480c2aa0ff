"""What to do next about an error, where its own sentence does not say it."""

from __future__ import annotations

import argparse

from ...protocol.errors import DflashError, ErrorCode

_BY_CODE = {
    ErrorCode.load_failed: "`dflashctl logs {model}` shows more; `dflashctl spawn {model}` tries "
    "again once it is mended",
    ErrorCode.hook_conflict: 'give {model} a group of its own, or placement = "auto"',
    ErrorCode.out_of_memory: "`dflashctl status` shows who holds memory; retire one, or give "
    "{model} a smaller context_tokens or cache",
    ErrorCode.overloaded: "`dflashctl top` shows what is queued",
    ErrorCode.worker_lost: "`dflashctl logs {model}` shows its last words, `dflashctl events` the "
    "reason",
    ErrorCode.worker_restarting: "`dflashctl status` shows why and when it starts again",
    ErrorCode.protocol: "client and daemon may be of different versions: `dflashctl --version`, "
    "`dflashctl status`",
    ErrorCode.internal: "`dflashctl events` and `dflashctl logs {model}` show what led to it",
}

_OTHER_KEY = "`dflashctl keys list` there shows each key's role; `--key FILE` chooses another one"
_OTHER_USER = "`dflashctl` must run as the user who started the daemon"


def advice_of(error: DflashError, options: argparse.Namespace) -> str:
    """One sentence, or nothing where the error says all there is to say."""
    from ...protocol.absence import Unanswered  # which brings libzmq along; most commands end well

    if isinstance(error, Unanswered):
        return advice_without_daemon(options)
    model: str | None = getattr(options, "model", None)
    if error.code is ErrorCode.unauthorised:
        advice = _OTHER_KEY if options.connect else _OTHER_USER
    else:
        advice = _BY_CODE.get(error.code, "")
    if "dflashctl" in error.message or ("{model}" in advice and not model):
        return ""
    return advice.format(model=model)


def advice_without_daemon(options: argparse.Namespace) -> str:
    """What to do where nobody answers; another machine cannot be looked at from here."""
    if options.connect:
        return "it must run there, with `[tcp]` in its configuration and a key that it allows"
    return "`dflashctl doctor` looks at what may keep it from running"
