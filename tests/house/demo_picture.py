"""Writes docs/demo.svg: what `make demo` prints today, as a terminal shows it (`make demo-picture`)."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from typing import Final

from rich.color import parse_rgb_hex
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from raftlog.cluster.drawing.page import colours
from tests.house.rules import ROOT

PICTURE: Final = ROOT / "docs" / "demo.svg"
COLUMNS: Final = 112


def picture(told: str) -> str:
    """The text of a terminal, with its colours, as SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False)
    told = re.sub(r"\x1b\[\?25[lh]", "", told)  # hides and shows the cursor
    console.print(Text.from_ansi(told.replace(f"{tempfile.gettempdir()}/", "").rstrip()))
    drawn = console.export_svg(title="make demo", unique_id="demo", theme=theme())
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # fonts of another host


def theme() -> TerminalTheme:
    """The dark colours of every page, as a terminal has them: black, red, green, yellow, blue, magenta, cyan, white."""
    of = {name: parse_rgb_hex(value[1:]) for name, value in colours(is_dark=True).items()}
    names = ("line", "invalid", "valid", "unknown", "c0", "c3", "c2", "ink")
    return TerminalTheme(
        of["paper"], of["ink"], [of[each] for each in names], [of["faint"], *(of[n] for n in names[1:])]
    )


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
