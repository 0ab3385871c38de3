"""Applies copied changes to an empty table, and checks each against the row that it says was there before."""

import json
from collections.abc import Iterable
from typing import Any

from raftlog import Record


def folded(records: Iterable[Record]) -> dict[Any, Any]:
    """The rows by table and key. Tables must have a full replica identity, so that a lost or doubled change shows."""
    rows: dict[Any, Any] = {}
    newest: tuple[int, int] = (0, 0)
    for record in records:
        key = tuple(json.loads(record.key or b""))
        change = json.loads(record.value or b"")
        high, low = (int(each, 16) for each in change["lsn"].split("/"))
        place = (high << 32 | low, change["n"])
        assert place > newest or change["op"] != "snapshot", change
        newest = place
        if change["op"] == "truncate":
            rows = {each: row for each, row in rows.items() if each[0] != change["table"]}
        elif change["op"] == "delete":
            assert _has(rows.pop(key), change["before"]), change
        elif change["op"] == "update":
            assert _has(rows[key], change["before"]), change
            rows[key] = change["after"]
        else:
            assert key not in rows, change
            rows[key] = change["after"]
    return rows


def _has(row: dict[str, Any], before: dict[str, Any]) -> bool:
    """A column that was added since has no value in the row yet."""
    return all(before[name] == value for name, value in row.items())
