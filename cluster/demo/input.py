"""Makes the demo's input if the user gives none: one event per changed file of each commit of this repository.

`raftlog.cluster.demo.story` calls it. Generated events, marked as such, fill it up to a fixed number of lines. A copy
without history has only generated ones.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

LINES: Final = 20_000
KEY: Final = "path"
_GIT: Final = ("git", "log", "--reverse", "--no-renames", "--name-status", "--format=commit %H %ct")
_FIRST_MS: Final = 1_700_000_000_000


def write_input(file: Path, lines: int = LINES) -> dict[str, int]:
    """Writes the input as NDJSON. Returns the number of lines from the history and of generated ones."""
    history = list(islice(_history(Path(__file__).resolve().parent.parent.parent), lines))
    generated = list(islice(_generated(history), lines - len(history)))
    with file.open("w", encoding="utf-8") as out:
        for event in history + generated:
            out.write(json.dumps(event, ensure_ascii=False) + "\n")
    return {"history": len(history), "generated": len(generated)}


def _history(folder: Path) -> Iterator[dict[str, Any]]:
    """One event per changed file of each commit, oldest first; none if there is no git or no history."""
    if not (folder / ".git").exists():
        return
    try:
        history = subprocess.run(_GIT, cwd=folder, capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return
    commit, time_ms = "", 0
    for line in history.stdout.decode("utf-8", "replace").splitlines():
        if line.startswith("commit "):
            _, commit, seconds = line.split(" ")
            time_ms = int(seconds) * 1000
        elif "\t" in line:
            change, _, path = line.partition("\t")
            yield {"source": "git", "commit": commit[:12], "change": change, "path": path, "time": time_ms}


def _generated(history: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Events of made-up edits, a few paths much more often than most; the same every time."""
    chance = random.Random(3)
    paths = sorted({event["path"] for event in history}) or [f"example/{number:03}.txt" for number in range(200)]
    chance.shuffle(paths)
    time_ms = max((event["time"] for event in history), default=_FIRST_MS)
    for number in range(10**9):
        time_ms += chance.randrange(5_000)
        path = paths[min(int(chance.paretovariate(0.8)) - 1, len(paths) - 1)]
        yield {"source": "generated", "number": number, "change": "M", "path": path, "time": time_ms}
