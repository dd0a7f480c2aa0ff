"""What an argument of ``dflashctl`` may be, where a type alone does not say it."""

from __future__ import annotations

import argparse


def seconds(text: str) -> float:
    """A time one can wait for."""
    value = float(text)
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"must be 0.05 to 3600 seconds, got {text}")
    return value


def positive(text: str) -> int:
    """A count of at least one."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value


def lengths(text: str) -> list[int]:
    """Block lengths, as a list with commas."""
    found = sorted({int(part) for part in text.split(",")})
    if found[0] < 2 or found[-1] > 64:
        raise argparse.ArgumentTypeError(f"must be 2 to 64, got {text}")
    return found
