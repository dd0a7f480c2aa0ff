"""The models of a soak: ten fakes with tempers of their own, and two real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..process.daemon_process import DaemonProcess

SOUND = {
    "fast": {"chunks": 200, "chunk_s": 0.0},
    "steady": {"chunks": 60, "chunk_s": 0.01},
    "slow-to-load": {"load_s": 1.0, "chunks": 20},
    "wordy": {"chunks": 40, "text": "word " * 500},
    "first-of-two": {"chunks": 50},
    "second-of-two": {"chunks": 50},
}
"""Fakes whose every answer is known: a number for each chunk."""

MOODY: dict[str, dict[str, Any]] = {
    "stubborn": {"ignore_stop": True, "ignore_term": True, "grandchild": True},
    "crashing": {"fault": "aborted", "fault_at": "decode", "fault_once": False},
    "out-of-memory": {"load_error": ["out_of_memory", "no room"]},
    "standing-still": {"chunks": 100, "stuck_after": 50, "ignore_cancel": True},
}
REAL = ("real-dflash", "real-plain")

LIMITS = {
    "active_requests_per_worker": 4,
    "queued_requests_per_model": 16,
    "ping_interval_s": 0.5,
    "pong_timeout_s": 6.0,
    "loading_pong_timeout_s": 30.0,
    "decode_stall_s": 6.0,
    "prefill_stall_s": 30.0,
    "cancel_timeout_s": 2.0,
    "release_timeout_s": 6.0,
    "drain_timeout_s": 3.0,
    "stop_timeout_s": 1.0,
    "terminate_timeout_s": 1.0,
    "backoff_first_s": 0.1,
    "backoff_limit_s": 2.0,
    "failure_window_s": 20.0,
    "stable_s": 5.0,
    "keepalive_s": 0.5,
}


def start(folder: Path, *, real: bool) -> DaemonProcess:
    """A daemon with all of them; checkpoints for the real ones are made in ``folder``."""
    sections = {"first-of-two": 'group = "two"', "second-of-two": 'group = "two"'}
    models = {**SOUND, **MOODY}
    if real:
        sections |= real_sections(folder)
        models |= {name: {"real": True} for name in REAL}
    return DaemonProcess(models, sections, **LIMITS)


def real_sections(folder: Path) -> dict[str, str]:
    """Two tiny real models: one that drafts, one that decodes plainly."""
    from ..tiny import Shape, make_draft, make_target

    target = make_target(folder / "target", Shape())
    draft = make_draft(folder / "draft", Shape())
    plain = make_target(folder / "plain", Shape(layers=2), seed=1)
    return {
        REAL[0]: f'target = "{target}"\ndraft = "{draft}"',
        REAL[1]: f'target = "{plain}"',
    }
