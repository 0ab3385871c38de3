"""Reads the truth of a run from the log: the applied records, and every change of a key with its index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from raftlog.cluster.api.records import ChangeJson, LogRecord

_TRIM: Final = ("trim", "applied")


@dataclass(frozen=True)
class LogTruth:
    """The whole log of a cluster, equal on all nodes, including the records that were trimmed during the run.

    Keys and values of the harness are text.
    """

    records: Sequence[LogRecord] = field(repr=False)

    @cached_property
    def appended(self) -> list[tuple[int, str]]:
        """Index and value of every append that was carried out, not of its repetitions."""
        return [
            (record.index, record.value or "")
            for record in self.records
            if record.operation == "append" and record.result == "applied"
        ]

    @cached_property
    def trims(self) -> list[tuple[int, int]]:
        """Index of every trim that was carried out, and the oldest index that it asked for."""
        return [(each.index, each.argument or 0) for each in self.records if (each.operation, each.result) == _TRIM]

    @cached_property
    def trimmed_before(self) -> int:
        """The oldest index that may be read at the end: what the trims in the log say; 1 where there is none."""
        return max((before for _, before in self.trims), default=1)

    @cached_property
    def changed(self) -> list[tuple[int, str, str | None]]:
        """Index, key and new value (None: deleted) of every change, in order."""
        return [change for record in self.records for change in _changes(record)]

    def values(self, prefix: str) -> Iterator[tuple[int, str, str | None]]:
        """The changes of keys that begin so."""
        return (change for change in self.changed if change[1].startswith(prefix))


def _changes(record: LogRecord) -> Iterator[tuple[int, str, str | None]]:
    if record.changes is not None:
        yield from ((record.index, each.key or "", _value(each)) for each in record.changes)
    elif record.result == "applied" and record.operation == "put":
        yield record.index, record.key or "", record.value
    elif record.result == "applied" and record.operation == "delete":
        yield record.index, record.key or "", None


def _value(change: ChangeJson) -> str | None:
    return None if change.deleted else change.value
