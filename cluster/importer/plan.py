"""Defines the plan of an import, and its progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from raftlog.cluster.importer.formats.deciding import ImportOptions
from raftlog.cluster.importer.session_file import CopyStep

BATCH_LINES: Final = 5_000

SESSION_TTL_MS: Final = 24 * 3_600_000
"""Time to live of the session: how long a killed import may wait before it continues."""


@dataclass(frozen=True, slots=True)
class ImportPlan(ImportOptions):
    """The input and the options of an import.

    `again` forgets an earlier import of the same input. `rejected_of` is the session file of the import whose rejected
    lines are the input. `tell` gets each decision as a sentence.
    """

    source: str  # path, pattern, folder, or "-"
    state: Path
    rejects: Path
    batch_lines: int = BATCH_LINES
    session_ttl_ms: int = SESSION_TTL_MS
    again: bool = False
    from_line: int = 1
    at: Callable[[CopyStep], None] = field(default=lambda _: None)
    more: tuple[str, ...] = ()  # further files
    follow: bool = False
    strict: bool = False
    rejected_of: Path | None = None
    tell: Callable[[str], None] = field(default=lambda _: None)

    @property
    def sources(self) -> tuple[str, ...]:
        """All that the user named."""
        return (self.source, *self.more)


@dataclass(frozen=True, slots=True)
class ImportProgress:
    """The progress after each acknowledged batch, counted over all runs of the import.

    `lines` and `bytes` are of the current file. `share` is how much of the input is read, from 0 to 1; None if its size
    is not known.
    """

    records: int
    rejected: int
    lines: int
    bytes: int
    first: int | None  # index of the first record
    last: int | None
    result: str  # of the newest batch: applied | repeated
    without_time: int = 0
    files: int = 0
    share: float | None = None
