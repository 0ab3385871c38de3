"""Writes docs/demo.svg: what `make demo` prints today, as a terminal shows it (`make demo-picture`)."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from typing import Final

from rich.console import Console
from rich.text import Text

from tests.house.rules import ROOT

PICTURE: Final = ROOT / "docs" / "demo.svg"
COLUMNS: Final = 112


def picture(told: str) -> str:
    """The text of a terminal, with its colours, as SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False)
    told = re.sub(r"\x1b\[\?25[lh]", "", told)  # hides and shows the cursor
    console.print(Text.from_ansi(told.replace(f"{tempfile.gettempdir()}/", "").rstrip()))
    return console.export_svg(title="make demo", unique_id="demo")


def main() -> None:
    """Runs the demo. Ends with its exit code."""
    shown = {"TTY_COMPATIBLE": "1", "TTY_INTERACTIVE": "0", "COLUMNS": str(COLUMNS), "COLORTERM": "truecolor"}
    done = subprocess.run(
        [sys.executable, "-m", "raftlog.cluster.cli.main", "demo"],
        env=os.environ | shown,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout)
    if done.returncode:
        raise SystemExit(done.returncode)
    PICTURE.write_text(picture(done.stdout), encoding="utf-8")


if __name__ == "__main__":
    main()
