"""What a look at a stopped node's files says: a finding for each file, and what all of them come to."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from cluster.disk_errors import RESTORE, DiskError

REMOVE: Final = "remove this file while the node is stopped: the next start makes it anew from its segment"
NEXT_START: Final = "nothing: the next start makes it anew"
REREAD: Final = (
    "remove the .idx beside it while the node is stopped: the next start reads this segment whole and mends it"
)
HEALS: Final = (
    "start the node: it keeps what is whole before that place, and gets the rest from the other nodes; as one of one "
    f"or two voters it cannot: {RESTORE}"
)
HEALS_ONCE_READ: Final = f"remove the .idx beside it, so that a start reads this segment; then {HEALS}"
NOT_READ: Final = "nothing has to be done for the data; a disk that changes bytes wants to be looked at"
NEWER_CODE: Final = "look with the version of raftlog that wrote it"
__all__ = [
    "HEALS",
    "HEALS_ONCE_READ",
    "NEWER_CODE",
    "NEXT_START",
    "NOT_READ",
    "REMOVE",
    "REREAD",
    "RESTORE",
    "FilesDamaged",
    "Finding",
    "NotLooked",
    "Report",
    "State",
    "Steps",
    "in_one_go",
]

T = TypeVar("T")

Steps = Generator[None, None, T]
"""A look at a file, a little at a time; it returns what it found."""


def in_one_go(look: Generator[Any, None, T]) -> T:
    """The same without a pause."""
    while True:
        try:
            next(look)
        except StopIteration as end:
            found: T = end.value
            return found


class State(StrEnum):
    """How a file is."""

    INTACT = "intact"
    UNFINISHED = "unfinished"  # as a crash may leave it: the next start ends it, and nothing acknowledged is in it
    UNKNOWN = "unknown"  # not one of raftlog's names: left alone
    NEWER = "newer"  # intact, of a version that this code does not know
    FOREIGN = "foreign"  # intact, and belongs elsewhere
    MISSING = "missing"
    DAMAGED = "damaged"  # bytes are not what was written


_HARMLESS: Final = (State.INTACT, State.UNFINISHED, State.UNKNOWN)


class NotLooked(DiskError):
    """The check could not be made; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is known of one file, or of one place in it."""

    file: str  # relative to the data folder
    state: State
    what: str  # what is in it, or what is wrong
    position: int | None = None  # byte in the file
    index: int | None = None  # the newest index before that place that is intact
    mend: str = ""  # what to do

    def __str__(self) -> str:
        place = "" if self.position is None else f" at byte {self.position}"
        after = "" if self.index is None else f", after index {self.index}"
        return f"{self.file}: {self.state}{place}{after}: {self.what}"

    @property
    def is_trouble(self) -> bool:
        """Whether somebody must know of it."""
        return self.state not in _HARMLESS


class FilesDamaged(DiskError):
    """Files of this node are damaged, and a start mends them: this process leaves it to that."""

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
    repair: str = ""  # what a start would do about damage of the log; empty: nothing

    @property
    def state(self) -> State:
        """The worst of all: damaged before newer before intact."""
        states = {finding.state for finding in self.findings}
        if states & {State.DAMAGED, State.MISSING, State.FOREIGN}:
            return State.DAMAGED
        return State.NEWER if State.NEWER in states else State.INTACT

    @property
    def troubles(self) -> list[Finding]:
        """What somebody must know of."""
        return [finding for finding in self.findings if finding.is_trouble]
