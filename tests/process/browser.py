"""A real headless Chromium, driven through its own debugging protocol's simplest door."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """Where it is, if it is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def look(program: str, url: str, profile: Path, *, width: int = 1100, height: int = 800) -> str:
    """Open a page, let it run for a minute of its own time, and return its text as drawn.

    A screenshot lies beside ``profile`` afterwards.
    """
    shared = [
        program,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        f"--user-data-dir={profile}",
        f"--window-size={width},{height}",
        "--virtual-time-budget=60000",
    ]
    picture = profile.with_suffix(".png")
    for command in ([*shared, f"--screenshot={picture}", url], [*shared, "--dump-dom", url]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout
