"""What a look at a stopped node's files says: a finding for each file, and what all of them come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cluster.disk_errors import RESTORE, DiskError

REMOVE: Final = "remove this file while the node is stopped: the next start makes it anew from its segment"
NEXT_START: Final = "nothing: the next start makes it anew"
REREAD: Final = (
    "remove the .idx beside it while the node is stopped: the next start reads this segment whole and mends it"
)
NOT_READ: Final = "nothing has to be done for the data; a disk that changes bytes wants to be looked at"
NEWER_CODE: Final = "look with the version of raftlog that wrote it"
__all__ = [
    "NEWER_CODE",
    "NEXT_START",
    "NOT_READ",
    "REMOVE",
    "REREAD",
    "RESTORE",
    "Finding",
    "NotLooked",
    "Report",
    "State",
]


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
        return [finding for finding in self.findings if finding.state not in _HARMLESS]
