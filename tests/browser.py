"""Runs pages in Chromium, where it is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import HANG_S


def drawn(url: str, profile: Path, budget_ms: int = 3_000) -> tuple[str, str]:
    """The page as Chromium has it after that time of its own clock, and what its scripts reported; skips without one.

    Chromium's clock waits for answers, so a busy machine draws the same page.
    """
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no chromium: the page is not looked at in a browser (Debian: apt-get install chromium)")
    command = [
        *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--log-level=0"),
        *(f"--user-data-dir={profile}", f"--virtual-time-budget={budget_ms}", "--dump-dom", url),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True)
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if ":CONSOLE" in line)
