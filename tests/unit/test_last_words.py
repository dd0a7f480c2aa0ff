"""What a worker's log says of its end."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dflashd.supervisor.process_ends import last_words

ABORTED = """
import faulthandler, os, threading, time
faulthandler.enable()
def compute(): os.abort()
def read(): time.sleep(9)
threading.Thread(target=read, daemon=True).start()
compute()
"""
HUNG = """
import faulthandler, time
faulthandler.dump_traceback_later(0.1, exit=True)
def compute(): time.sleep(9)
compute()
"""


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (ABORTED, 'Fatal Python error: Aborted at File "<string>", line 4 in compute'),
        (HUNG, 'Timeout (0:00:00.100000)! at File "<string>", line 4 in compute'),
    ],
)
def test_a_native_crash_is_told_by_what_and_where(program: str, said: str) -> None:
    """Of all the stacks that faulthandler writes, the crashed thread's top is what counts."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert last_words(f"12:00 INFO model_loaded\n{done.stderr}") == said


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("", ""),
        ("12:00 INFO worker_ready\n", ""),
        ("12:00 WARNING request_failed reason=long request=7f model=a\n", ""),
        ("12:00 INFO worker_ready\nValueError: no\n", "ValueError: no"),
        ("Fatal Python error: Bus error", "Fatal Python error: Bus error"),
        (
            "Fatal Python error: Bus error\n\nCurrent thread 0x1 (most recent call first):\n",
            "Fatal Python error: Bus error",
        ),
        (
            'Fatal Python error: Bus error\n\nThread 0x1 (most recent call first):\n  File "a"',
            'Fatal Python error: Bus error at File "a"',
        ),
    ],
)
def test_other_ends_are_told_by_the_last_line(log: str, said: str) -> None:
    """Routine explains nothing, another's request even less; a dump cut off says what it was."""
    assert last_words(log) == said
