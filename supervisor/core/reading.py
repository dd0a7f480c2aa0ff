"""Reading the configuration again: one reading at a time; who asks meanwhile gets the next one."""

from __future__ import annotations

from ...protocol.errors import ErrorCode
from ...protocol.messages import Reload, Reloaded
from . import reload
from .effects import ReadConfig
from .events import ConfigRead, ConfigRefused, ReloadAsked
from .records import Command, Reading
from .refusals import STOPPING
from .state import State

READ_TIMEOUT_S = 10.0
"""A file that is not read by then lies on a file system that hangs."""

ONLY_DRY = "a configuration that is sent along can only be looked at: add dry_run"


def ask(s: State, command: Command, header: Reload, body: bytes, now: float) -> None:
    """An owner asks for a reload, or what one would change."""
    if s.shutdown_level:
        s.fail_commands([command], ErrorCode.shutting_down, STOPPING)
    elif body and not header.dry_run:
        s.fail_commands([command], ErrorCode.bad_request, ONLY_DRY)
    else:
        join(s, command, dry_run=header.dry_run, body=body, now=now)


def asked(s: State, event: ReloadAsked, now: float) -> None:
    """A signal or the file's change asks; nobody waits for the answer but the log."""
    s.note("reload_asked", cause=event.cause)
    if s.shutdown_level:
        s.note("config_refused", reason=STOPPING)
    else:
        join(s, None, dry_run=False, body=b"", now=now)


def join(s: State, command: Command | None, *, dry_run: bool, body: bytes, now: float) -> None:
    """Have it read: with those who ask the same and whose reading has not begun, if there are."""
    same = [r for r in s.readings[1:] if not body and not r.body and r.dry_run == dry_run]
    reading = same[0] if same else Reading(dry_run=dry_run, body=body)
    if command is not None:
        reading.commands.append(command)
    if not same:
        s.readings.append(reading)
    begin(s, now)


def begin(s: State, now: float) -> None:
    """Begin the reading whose turn it is, unless it has begun."""
    if not s.readings or s.readings[0].due_at is not None:
        return
    first = s.readings[0]
    s.last_reading += 1
    first.n = s.last_reading
    first.due_at = now + READ_TIMEOUT_S
    s.emit(ReadConfig(n=first.n, dry_run=first.dry_run, body=first.body))


def read(s: State, event: ConfigRead, now: float) -> None:
    """Change to what was read, or only say what would change."""
    reading = current(s, event.n)
    if reading is None:
        return
    body = reload.report(s, event, dry_run=reading.dry_run)
    if not reading.dry_run:
        reload.apply(s, event, now)
    for command in reading.commands:
        s.tell(command.peer, Reloaded(id=command.id), body)
    begin(s, now)


def refused(s: State, event: ConfigRefused, now: float) -> None:
    """There is nothing to change to: everything stays as it is."""
    reading = current(s, event.n)
    if reading is None:
        return
    if not reading.dry_run:
        s.note("config_refused", reason=event.reason)
    s.fail_commands(reading.commands, ErrorCode.bad_request, event.reason)
    begin(s, now)


def expired(s: State, now: float) -> None:
    """Wait no longer for a reading that does not end."""
    if s.readings and due_at(s) <= now:
        reason = f"the configuration could not be read within {READ_TIMEOUT_S:.0f} s"
        refused(s, ConfigRefused(n=s.readings[0].n, reason=reason), now)


def due_at(s: State) -> float:
    """When the reading that has begun must have ended; infinity if there is none."""
    found = s.readings[0].due_at if s.readings else None
    return float("inf") if found is None else found


def give_up(s: State) -> None:
    """The daemon stops: no reading matters any more."""
    for reading in s.readings:
        s.fail_commands(reading.commands, ErrorCode.shutting_down, STOPPING)
    s.readings.clear()


def current(s: State, n: int) -> Reading | None:
    """Take out the reading that has ended, if anybody still waits for that one."""
    if not s.readings or s.readings[0].n != n:
        s.counters["stale_dropped"] += 1
        return None
    return s.readings.pop(0)
