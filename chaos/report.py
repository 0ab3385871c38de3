"""The page of a run: one HTML file without outside resources, made from its folder.

`chaos/report.html` is the page; this puts the data in: result.json, and the operations of all histories as rows.
Everything that did not end well is on it, and everything about keys that are not valid; of the rest at most
`ROWS_MAX`, evenly over the run, and the page says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from chaos.history import BadHistory, Operation, read_history
from chaos.model import text_of
from chaos.run_folder import history_file, load

PAGE: Final = "report.html"
ROWS_MAX: Final = 40_000
TEXT_MAX: Final = 60

Row = tuple[int, int, int, int, int, int, int, str]
"""Workload, key, process, function, outcome (each a number of a table), beginning and end in µs, text."""

OUTCOMES: Final = ("ok", "fail", "info")


class _Names(dict[str, int]):
    """Words as small numbers."""

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self)
        return number


def write_page(folder: Path) -> Path:
    """Writes the page of the run in that folder. Raises BadFolder, BadHistory."""
    page = folder / PAGE
    page.write_text(page_of(folder), encoding="utf-8")
    return page


def page_of(folder: Path) -> str:
    """The page as text."""
    template = Path(__file__).with_name(PAGE).read_text(encoding="utf-8")
    data = msgspec.json.encode(data_of(folder)).decode()
    return template.replace("{{DATA}}", data.replace("<", "\\u003c").replace("\u2028", "\\u2028"))


def data_of(folder: Path) -> dict[str, Any]:
    """What the page shows."""
    result = load(folder)
    words: dict[str, _Names] = {name: _Names() for name in ("workloads", "keys", "processes", "functions")}
    rows: list[Row] = []
    bad: list[dict[str, Any]] = []
    total = 0
    for workload in result["workloads"]:
        name = workload["name"]
        keys = {_key(name, key["key"]) for key in workload["check"]["keys"]}
        operations = read_file(folder, name)
        total += len(operations)
        rows += _rows(name, operations, keys, words, ROWS_MAX // len(result["workloads"]))
        for key in workload["check"]["keys"]:
            impossible = key["impossible"]
            bad.append(
                {
                    "key": words["keys"][_key(name, key["key"])],
                    "verdict": key["verdict"],
                    "impossible": None if impossible is None else _text_of_row(operations, impossible["lines"][0]),
                }
            )
    tables = {table: list(names) for table, names in words.items()}
    return {"result": result, "tables": tables, "outcomes": OUTCOMES, "rows": rows, "bad": bad, "total": total}


def read_file(folder: Path, workload: str) -> list[Operation]:
    """The operations of a workload. Raises BadHistory naming the file."""
    path = history_file(folder, workload)
    try:
        if path.stat().st_size == 0:
            return []  # a workload that asked nothing
        return read_history(path).operations()
    except OSError as error:
        raise BadHistory(f"{path}: {error.strerror or error}") from error
    except BadHistory as error:
        raise error if str(error).startswith(str(path)) else BadHistory(f"{path}: {error}") from error


def _key(workload: str, key: Any) -> str:
    return workload if key is None else f"{workload} {key if isinstance(key, str) else text_of(key)}"


def _rows(
    name: str, operations: Iterable[Operation], bad: set[str], words: dict[str, _Names], most: int
) -> Iterator[Row]:
    listed = list(operations)
    step = max(1, -(-len(listed) // most))
    for number, each in enumerate(listed):
        key = _key(name, each.key)
        if number % step and each.outcome == "ok" and key not in bad:
            continue
        began = (each.called_ns or 0) // 1000
        ended = (each.returned_ns if each.returned_ns is not None else each.called_ns or 0) // 1000
        yield (
            words["workloads"][name], words["keys"][key], words["processes"][str(each.process)],
            words["functions"][each.f], OUTCOMES.index(each.outcome), began, ended, _text(each),
        )  # fmt: skip


def _text(operation: Operation) -> str:
    text = str(operation).partition(": ")[2].rpartition(" (line")[0]
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"


def _text_of_row(operations: Iterable[Operation], line: int) -> dict[str, Any] | None:
    for each in operations:
        if each.called == line:
            return {"text": str(each), "at": (each.called_ns or 0) // 1000, "process": str(each.process)}
    return None
