"""How far one request walks through the code: calls, files, and hand-overs from file to file.

The figures count calls, not time: they are the same on every machine. The bounds are the table of
docs/walk_of_a_put.md. A bound may fall, and never rises.
"""

import re
from pathlib import Path

from tests.cluster.http.walk import ROOT, record
from tests.compiled import INTERPRETED_ONLY

pytestmark = INTERPRETED_ONLY

ROW = re.compile(r"\| ([A-Z]+) \|((?: [0-9]+ \|){6})")


def bounds() -> dict[str, dict[str, int]]:
    """Of each request, as the last three columns of the table say."""
    page = (ROOT / "docs" / "walk_of_a_put.md").read_text(encoding="utf-8")
    rows = {name: [int(cell) for cell in cells.split("|")[:6]] for name, cells in ROW.findall(page)}
    return {name: dict(zip(("calls", "files", "hand_overs"), row[3:], strict=True)) for name, row in rows.items()}


async def test_a_request_walks_no_further_than_recorded(tmp_path: Path) -> None:
    """Each new call or file on the way of every request must be worth it. On a busy machine a tick may fall into every
    walk: then all are recorded again, a few times."""
    recorded = bounds()
    for attempt in range(4):
        walks = await record(tmp_path / str(attempt))
        if all(walk.figures[what] <= recorded[name][what] for name, walk in walks.items() for what in walk.figures):
            break
    for name, walk in walks.items():
        print(f"{name}: {walk.figures}")
        print(f"  {', '.join(walk.files)}")
    assert walks.keys() == recorded.keys()
    over = {
        f"{name}: {what}": (value, recorded[name][what])
        for name, walk in walks.items()
        for what, value in walk.figures.items()
        if value > recorded[name][what]
    }
    assert not over, f"longer than recorded (found, bound): {over}; see python -m tests.cluster.http.walk"
