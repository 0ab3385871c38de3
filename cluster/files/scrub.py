"""Scrubs the files of a running node: checks them again and again in small steps, and reports damage.

Pure: the server (`raftlog.cluster.disk.scrubber`) and the simulator drive it. It checks sealed segments with their .idx
and .ledger, and snapshots, with the code of `raftlog disk check`. The newest segment is left out, because it is still
written, and a start reads it whole. A finding counts only if a second check finds it again: else the file changed
during
the first.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Final, Protocol

from raftlog.cluster.files.check_ledger import looking_at_ledger
from raftlog.cluster.files.check_segment import header_of, looking_at_segment
from raftlog.cluster.files.check_snapshots import SnapshotFindings, looking_at_snapshot
from raftlog.cluster.files.findings import NEXT_START, NOT_READ, REREAD, FileHealth, Finding, Steps, in_one_go
from raftlog.raft.wal.formats import (
    LOG_FOLDER,
    index_name,
    ledger_name,
    segment_name,
)
from raftlog.raft.wal.journal import Journal, Segment
from raftlog.raft.wal.ledger import Ledger
from raftlog.raft.wal.operations import Files
from raftlog.raft.wal.snapshot_files import list_snapshots, snapshot_folder

AGAIN_S: Final = 1.0
"""Seconds before the second check."""
UNREADABLE: Final = (
    "the disk cannot read it: look at the disk, and put another in its place (`raftlog members replace`)"
)

_NOT_THE_DISKS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # they end the round, and prove nothing about a file

Waits = Generator[float, None, None]
"""Steps, each with the seconds to wait after it."""


class ScrubFiles(Files, Protocol):
    """Files that may be kept open between two checks."""

    bytes: int
    """Bytes read so far."""

    def close(self) -> None:
        """Closes all files, so that a file that replaced another is read from now on."""


class Looker:
    """Checks the files of a shard that is in use. Belongs to one thread."""

    def __init__(self, files: ScrubFiles, journal: Journal, ledger: Ledger) -> None:
        self.files = files
        self.file = ""  # the file that is being checked; empty: none
        self._journal, self._ledger = journal, ledger

    def end(self) -> None:
        """Closes the files until the next round."""
        self.file = ""
        self.files.close()

    def sealed(self) -> list[tuple[Segment, Segment]]:
        """The sealed segments whose rows are all written, each with the segment that follows it, in order."""
        pairs = pairwise(list(self._journal.segments))
        return [pair for pair in pairs if pair[0].last.index <= self._journal.indexed]

    def segment(self, segment: Segment, following: Segment) -> Steps[list[Finding]]:
        """The damage in a sealed segment and the files beside it.

        Empty once the segment was dropped or cut, even if it was sealed again since, because it ends elsewhere now.
        """
        self.files.close()  # a cut may have replaced them
        self.file = segment_name(segment.first)
        head = self._header(segment)
        looked = yield from looking_at_segment(self._journal.log, self.files, segment.header, following.header)
        findings = [*head, *looked.findings]
        if self._ledger.last >= segment.last.index:
            self.file = ledger_name(segment.first)
            ledger = yield from looking_at_ledger(self._journal.log, self.files, looked, is_sealed=True)
            findings.append(ledger.finding)
        self.file = ""
        if not any(one is segment and other is following for one, other in self.sealed()):
            return []
        return [finding for finding in findings if finding.is_trouble]

    def _header(self, segment: Segment) -> list[Finding]:
        """The damage in the first bytes of a segment, which only a start reads."""
        header = header_of(self._journal.log, self.files, segment.first)
        if header == segment.header:
            return []
        what = header.what if isinstance(header, Finding) else "its header is that of another segment"
        name, before = segment_name(segment.first), segment.previous.index
        return [Finding(name, FileHealth.DAMAGED, what, 0, before, NEXT_START)]

    def snapshot(self, index: int) -> Steps[list[Finding]]:
        """The damage in a snapshot; empty once it was dropped."""
        self.files.close()
        self.file = snapshot_folder(index)
        found = SnapshotFindings()
        yield from looking_at_snapshot(self._journal.log, self.files, index, found)
        self.file = ""
        return [each for each in found.findings if each.is_trouble] if index in list_snapshots(self.files) else []

    def closer(self, file: str) -> list[Finding]:
        """The damage in a sealed segment, by the name of its file, and in the files beside it. Without pauses."""
        for segment, following in self.sealed():
            if segment_name(segment.first) == file:
                return in_one_go(self.segment(segment, following))
        return []

    def round(self, found: Callable[[list[Finding]], None]) -> Waits:
        """Checks every file once, and calls `found` with the damage of each place.

        Raises OSError if a folder cannot be listed, or if no file descriptor or memory is left for checking."""
        after = 0
        while pair := next((each for each in self.sealed() if each[0].last.index > after), None):
            after = pair[0].last.index
            yield from self._twice(partial(self.segment, *pair), found)
        for index in list_snapshots(self.files):
            yield from self._twice(partial(self.snapshot, index), found)
        self.files.close()

    def _twice(self, look: Callable[[], Steps[list[Finding]]], found: Callable[[list[Finding]], None]) -> Waits:
        """Checks once, and if that finds damage a second time."""
        findings = yield from self._look(look)
        if findings:
            yield AGAIN_S
            findings = yield from self._look(look)
        if findings:
            found(findings)

    def _look(self, look: Callable[[], Steps[list[Finding]]]) -> Generator[float, None, list[Finding]]:
        steps = look()
        try:
            while True:
                next(steps)
                yield 0.0
        except StopIteration as end:
            found: list[Finding] = end.value
            return found
        except OSError as error:
            if error.errno in _NOT_THE_DISKS:
                raise
            return [Finding(self.file, FileHealth.DAMAGED, str(error), mend=UNREADABLE)]


def derived(findings: Iterable[Finding]) -> list[str]:
    """The files to remove so that the next start reads and repairs the damage.

    The start makes them again from the segment, and entries that the segment has lost come from the other nodes. Empty
    for damage that no start would repair.
    """
    names: set[str] = set()
    for finding in findings:
        folder, _, name = finding.file.rpartition("/")
        stem, _, kind = name.partition(".")
        if folder == LOG_FOLDER and stem.isdigit() and finding.mend not in (UNREADABLE, NOT_READ):
            names.add(ledger_name(int(stem)) if kind == "ledger" else index_name(int(stem)))
    return sorted(names)


def mended_for_free(findings: Iterable[Finding], first: int, snapshots: Sequence[int]) -> list[Finding]:
    """The findings that a start repairs without dropping older history.

    `first` is the first index of the log, `snapshots` are the indexes of those on disk. A log that is cut at or before
    the newest snapshot begins again after it (decision 9).
    """
    mended = [finding for finding in findings if derived([finding])]
    costly = {_stem(each) for each in mended if not _is_free(each, first, snapshots)}
    return [finding for finding in mended if _stem(finding) not in costly]


def _stem(finding: Finding) -> int:
    return int(finding.file.rpartition("/")[2].partition(".")[0])


def _is_free(finding: Finding, first: int, snapshots: Sequence[int]) -> bool:
    if finding.file.endswith(".seg"):
        return finding.mend == REREAD or (finding.index or 0) > max(snapshots, default=0)
    if finding.file.endswith(".idx"):
        return True
    return first == 1 or any(first - 1 <= index < _stem(finding) for index in snapshots)  # replayed from there


def snapshots_among(findings: Sequence[Finding], indexes: Iterable[int]) -> list[int]:
    """The snapshots of `indexes` that the findings are about."""
    return [index for index in indexes if any(each.file.startswith(snapshot_folder(index)) for each in findings)]
