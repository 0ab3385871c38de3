"""Makes the page of a run from its folder: one HTML file without outside resources.

`page.html` and `page.js` draw it; this module puts the data in: result.json, and the operations of all histories as
rows. The page has every operation that did not end well, and every operation of keys that are not valid. If the others
are more than `ROWS_MAX`, it has every nth of them, and says so. Rates and quantiles are those of all operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final

from raftlog.chaos.judge.history import BadHistory, Operation, read_history
from raftlog.chaos.judge.model import text_of
from raftlog.chaos.record.folder import history_file, load, sentence
from raftlog.chaos.record.times import Stretch, quantiles, without_leader
from raftlog.cluster.drawing.page import with_data
from raftlog.cluster.drawing.plots import BarPlot, svg, ticks

PAGE: Final = "report.html"
ROWS_MAX: Final = 40_000
PARTS_MAX: Final = 2_000
"""Most faults, and most stretches of nodes, that a page has: the newest, because a run ends where it broke."""
TEXT_MAX: Final = 60
BINS_MAX: Final = 1_200
BIN_MIN_US: Final = 100_000

Row = tuple[int, int, int, int, int, int, int, str]
"""Workload, key, process, function, outcome (each a number of a table), beginning and end in µs, text. The end of an
operation without an answer is NEVER."""

NEVER: Final = -1

OUTCOMES: Final = ("ok", "fail", "info")


class _Names(dict[str, int]):
    """Words as small numbers."""

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self)
        return number


def write_page(folder: Path) -> Path:
    """Writes the page of the run in that folder. Raises BadFolder, BadHistory."""
    page, data = folder / PAGE, data_of(folder)
    here = Path(__file__)
    script = here.with_name("page.js").read_text(encoding="utf-8")
    plots = "".join(_histogram(kind, took) for kind, took in data["result"]["losses"].items())
    page.write_text(with_data(here.with_name("page.html"), data, script=script, plots=plots), encoding="utf-8")
    return page


def _histogram(kind: str, took_s: list[float]) -> str:
    """How many losses of a leader took how long until the next write."""
    marks = ticks(0, 1001 * max(took_s), 12)
    counts = [sum(low <= 1000 * each < high for each in took_s) for low, high in pairwise(marks)]
    labels = [f"{low:g} to {high:g} ms" for low, high in pairwise(marks)]
    return svg(BarPlot(f"{kind}: from the loss of the leader to the next acknowledged write", labels, counts))


def data_of(folder: Path) -> dict[str, Any]:
    """What the page shows."""
    result = load(folder)
    load_us = int(1e6 * result["load_s"])
    words: dict[str, _Names] = {name: _Names() for name in ("workloads", "keys", "processes", "functions")}
    rows: list[Row] = []
    bad: list[dict[str, Any]] = []
    latency: list[dict[str, Any]] = []
    histories = {workload["name"]: read_file(folder, workload["name"]) for workload in result["workloads"]}
    total = sum(map(len, histories.values()))
    step = max(1, -(-total // ROWS_MAX))
    for workload in result["workloads"]:
        name = workload["name"]
        keys = {_key(name, key["key"]) for key in workload["check"]["keys"]}
        operations = histories[name]
        rows += _rows(name, operations, keys, words, step)
        latency += _latency(name, operations)
        places = {each.called: each for each in operations} if keys else {}
        bad += [
            {
                "key": words["keys"][_key(name, key["key"])],
                "impossible": key["impossible"] and _place(places[key["impossible"]["lines"][0]]),
                "order": [_place(places[each["lines"][0]]) for each in key["prefix"] if each["lines"][0] in places],
            }
            for key in workload["check"]["keys"]
        ]
    stretches = [Stretch(**each) for each in result["stretches"]]
    return {
        "result": result | {name: result[name][-PARTS_MAX:] for name in ("faults", "stretches")},
        "left_out": {name: max(0, len(result[name]) - PARTS_MAX) for name in ("faults", "stretches")},
        "sentence": sentence(result),
        "tables": {table: list(names) for table, names in words.items()},
        "outcomes": OUTCOMES,
        "rows": rows,
        "bad": bad,
        "total": total,
        "rates": _rates(chain(*histories.values()), load_us),
        "latency": latency,
        "leaderless": [[start // 1000, end // 1000] for start, end in without_leader(stretches, load_us * 1000)],
    }


def _rates(operations: Iterable[Operation], load_us: int) -> dict[str, Any]:
    """How many operations ended in each of many short stretches of the load, well and otherwise."""
    bin_us = max(BIN_MIN_US, -(-load_us // BINS_MAX))
    ok, other = ([0] * (load_us // bin_us + 1) for _ in range(2))
    for each in operations:
        at = (each.returned_ns or 0) // 1000 // bin_us
        if each.returned_ns is not None and at < len(ok):
            (ok if each.outcome == "ok" else other)[at] += 1
    return {"bin_us": bin_us, "ok": ok, "other": other}


def _latency(name: str, operations: Iterable[Operation]) -> Iterator[dict[str, Any]]:
    """Per function the quantiles of those that were carried out, in µs."""
    took: dict[str, list[int]] = {}
    for each in operations:
        if each.outcome == "ok" and each.called_ns is not None and each.returned_ns is not None:
            took.setdefault(each.f, []).append((each.returned_ns - each.called_ns) // 1000)
    for f, values in took.items():
        yield {"workload": name, "function": f, "us": [*quantiles(values).values()]}


def read_file(folder: Path, workload: str) -> list[Operation]:
    """The operations of a workload. Raises BadHistory naming the file."""
    path = history_file(folder, workload)
    if path.exists() and path.stat().st_size == 0:
        return []  # a workload that asked nothing
    try:
        return read_history(path).operations()
    except BadHistory as error:
        raise BadHistory(f"{path}: {str(error).removeprefix(f'{path}: ')}") from error


def _key(workload: str, key: Any) -> str:
    return workload if key is None else f"{workload} {key if isinstance(key, str) else text_of(key)}"


def _rows(
    name: str, operations: Iterable[Operation], bad: set[str], words: dict[str, _Names], step: int
) -> Iterator[Row]:
    for number, each in enumerate(operations):
        key = _key(name, each.key)
        if number % step and each.outcome == "ok" and key not in bad:
            continue
        began = (each.called_ns or 0) // 1000
        ended = NEVER if each.returned_ns is None else each.returned_ns // 1000
        yield (
            words["workloads"][name],
            words["keys"][key],
            words["processes"][str(each.process)],
            words["functions"][each.f],
            OUTCOMES.index(each.outcome),
            began,
            ended,
            _text(each),
        )


def _text(operation: Operation) -> str:
    text = operation.text
    if operation.key is not None:
        text = text.replace(f" of {text_of(operation.key)}", "", 1)  # the page shows it by its key
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"


def _place(operation: Operation) -> dict[str, Any]:
    """How the page finds an operation, and names it."""
    return {"process": str(operation.process), "at": (operation.called_ns or 0) // 1000, "text": str(operation)}
