"""The daemon's log: in order when it is read, dropped and counted when it is not."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor

from dflashd.supervisor.logs.pump import LogPump


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("dflashd", logging.INFO, "", 0, text, (), None)


def test_lines_arrive_in_order_and_the_last_before_the_end() -> None:
    """Closing the pump waits until what was logged is written."""
    source, target = os.pipe()
    pump = LogPump(target)
    for n in range(100):
        pump.handle(record(f"line {n}"))
    pump.close()
    os.close(target)
    with os.fdopen(source) as file:
        assert file.read().splitlines() == [f"line {n}" for n in range(100)]


def test_nobody_reads_and_nobody_waits() -> None:
    """With a full pipe, logging and closing take no time; later the gap is written down."""
    source, target = os.pipe()
    fcntl.fcntl(target, fcntl.F_SETPIPE_SZ, 4096)
    pump = LogPump(target, lines=50)
    began_s = time.monotonic()
    for n in range(2000):
        pump.handle(record(f"line {n} " + "x" * 100))
    assert time.monotonic() - began_s < 30  # who waits would wait for ever
    dropped = pump.dropped
    assert dropped > 1000
    with os.fdopen(source) as file, ThreadPoolExecutor() as pool:
        reading = pool.submit(file.read)
        pump.close()
        os.close(target)
        lines = reading.result(timeout=10).splitlines()
    gaps = [int(line.split("=")[1]) for line in lines if line.startswith("log_lines_dropped")]
    numbers = [int(line.split()[1]) for line in lines if line.startswith("line")]
    assert sum(gaps) == dropped == 2000 - len(numbers)
    assert numbers == sorted(numbers)


def test_an_output_that_is_gone_is_no_reason_to_fail() -> None:
    """Lines for a reader that has left are counted, and closing is quick."""
    source, target = os.pipe()
    os.close(source)
    pump = LogPump(target)
    pump.handle(record("into a closed pipe"))
    pump.close()
    assert pump.dropped == 1
    os.close(target)
