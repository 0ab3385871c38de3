"""Defines the findings about a node's files, and sums them up.

The checks of this room make them; `raftlog disk check` prints them, and scrubbing logs them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from raftlog.cluster.files.errors import RESTORE, DiskError

REMOVE: Final = "remove this file while the node is stopped: the next start makes it again from its segment"
NEXT_START: Final = "nothing: the next start makes it again"
REREAD: Final = (
    "remove the .idx beside it while the node is stopped: the next start reads the whole segment and repairs it"
)
HEALS: Final = (
    "start the node: it keeps the intact part before that place, and gets the rest from the other nodes. As one "
    f"of one or two voters it cannot: {RESTORE}"
)
HEALS_ONCE_READ: Final = f"remove the .idx beside it, so that a start reads this segment; then {HEALS}"
NOT_READ: Final = "nothing for the data; but look at the disk, because it changed bytes"
NEWER_CODE: Final = "check it with the version of raftlog that wrote it"
__all__ = [
    "HEALS",
    "HEALS_ONCE_READ",
    "NEWER_CODE",
    "NEXT_START",
    "NOT_READ",
    "REMOVE",
    "REREAD",
    "RESTORE",
    "FileHealth",
    "FilesDamaged",
    "Finding",
    "NotLooked",
    "Report",
    "Steps",
    "in_one_go",
]

T = TypeVar("T")

Steps = Generator[None, None, T]
"""A check of a file, in small steps; it returns its result."""


def in_one_go(look: Generator[Any, None, T]) -> T:
    """Runs all steps without a pause."""
    while True:
        try:
            next(look)
        except StopIteration as end:
            found: T = end.value
            return found


class FileHealth(StrEnum):
    """The condition of a file."""

    INTACT = "intact"
    UNFINISHED = "unfinished"  # as a crash leaves it, without acknowledged data; the next start finishes it
    UNKNOWN = "unknown"  # not one of raftlog's names: left alone
    NEWER = "newer"  # intact, of a version that this code does not know
    FOREIGN = "foreign"  # intact, and belongs elsewhere
    MISSING = "missing"
    DAMAGED = "damaged"  # its bytes differ from those that were written


_HARMLESS: Final = (FileHealth.INTACT, FileHealth.UNFINISHED, FileHealth.UNKNOWN)


class NotLooked(DiskError):
    """The check could not be made; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The condition of one file, or of one place in it."""

    file: str  # relative to the data folder
    state: FileHealth
    what: str  # its content, or the damage
    position: int | None = None  # byte position in the file
    index: int | None = None  # the newest index before that place that is intact
    mend: str = ""  # what the operator should do

    def __str__(self) -> str:
        place = "" if self.position is None else f" at byte {self.position}"
        after = "" if self.index is None else f", after index {self.index}"
        return f"{self.file}: {self.state}{place}{after}: {self.what}"

    @property
    def is_trouble(self) -> bool:
        """Whether an operator must know of it."""
        return self.state not in _HARMLESS


class FilesDamaged(DiskError):
    """Files of this node are damaged, and the next start repairs them: this process ends for that."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("; ".join(str(each) for each in findings))
        self.findings = tuple(findings)


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, in the order in which a start reads the files."""

    folder: str
    node: int | None
    log_id: str | None
    first: int  # oldest index in the log; 0: nothing could be read
    last: int  # newest intact index without a gap before it
    findings: Sequence[Finding]
    refusal: str  # why a node would not start on this folder; empty: it would
    repair: str = ""  # how a start would repair the log; empty: not at all

    @property
    def state(self) -> FileHealth:
        """The worst of all conditions: damaged before newer before intact."""
        states = {finding.state for finding in self.findings}
        if states & {FileHealth.DAMAGED, FileHealth.MISSING, FileHealth.FOREIGN}:
            return FileHealth.DAMAGED
        return FileHealth.NEWER if FileHealth.NEWER in states else FileHealth.INTACT

    @property
    def troubles(self) -> list[Finding]:
        """The findings that an operator must know of."""
        return [finding for finding in self.findings if finding.is_trouble]
