"""Looks at the files of a running node again and again, a little at a time, and says which are damaged.

Sealed segments with their .idx and .ledger, and snapshots: with the very looks of `raftlog disk check`. The newest
segment is left out: it is still written, and a start reads it whole. What a second look does not find again was a file
that changed meanwhile. Pure: the server (`cluster.disk_scrub`) and the simulator drive it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Final, Protocol

from cluster.disk_check_ledger import looking_at_ledger
from cluster.disk_check_segment import looking_at_segment
from cluster.disk_check_snapshots import Snapshots, looking_at_snapshot
from cluster.disk_findings import NEXT_START, NOT_READ, REREAD, Finding, State, Steps, in_one_go
from raft.codec import Corrupt, UnknownVersion
from raft.formats import SEGMENT_HEADER_SIZE, ForeignFile, decode_segment_header
from raft.journal import LOG_FOLDER, Journal, Segment, index_name, ledger_name, segment_name
from raft.operations import Files
from raft.storage_ledger import Ledger
from raft.storage_snapshots import list_snapshots, snapshot_folder

AGAIN_S: Final = 1.0
"""Before the second look."""
UNREADABLE: Final = (
    "the disk cannot read it: look at the disk, and put another in its place (`raftlog members replace`)"
)

_NOT_THE_DISKS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # they end the round, and say nothing of a file

Waits = Generator[float, None, None]
"""Steps, each with the seconds to wait after it."""


class Reading(Files, Protocol):
    """Files that may be kept open from one look to the next."""

    bytes: int
    """Read so far."""

    def close(self) -> None:
        """Whoever has another file's place is read from now on."""


class Looker:
    """Looks at the files of a shard that is in use. Belongs to one thread."""

    def __init__(self, files: Reading, journal: Journal, ledger: Ledger) -> None:
        self.files = files
        self.file = ""  # that is being looked at; empty: none is
        self._journal, self._ledger = journal, ledger

    def end(self) -> None:
        """Nothing is looked at any more, until the next round."""
        self.file = ""
        self.files.close()

    def sealed(self) -> list[tuple[Segment, Segment]]:
        """The segments that another follows and all of whose rows are written, each with that one, in order."""
        pairs = pairwise(list(self._journal.segments))
        return [pair for pair in pairs if pair[0].last.index <= self._journal.indexed]

    def segment(self, segment: Segment, following: Segment) -> Steps[list[Finding]]:
        """What is wrong with a sealed segment and what lies beside it; nothing once it was dropped or cut, even
        if it was sealed anew since: it ends otherwise now."""
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
        """What is wrong with the first bytes of a segment, which only a start reads."""
        log, name = self._journal.log, segment_name(segment.first)
        try:
            header = decode_segment_header(log, self.files.read(name, 0, SEGMENT_HEADER_SIZE))
            what = "" if header == segment.header else "its header is that of another segment"
        except (Corrupt, ForeignFile, UnknownVersion) as error:
            what = str(error)
        return [Finding(name, State.DAMAGED, what, 0, segment.previous.index, NEXT_START)] if what else []

    def snapshot(self, index: int) -> Steps[list[Finding]]:
        """What is wrong with a snapshot; nothing once it was dropped."""
        self.files.close()
        self.file = snapshot_folder(index)
        found = Snapshots()
        yield from looking_at_snapshot(self._journal.log, self.files, index, found)
        self.file = ""
        return [each for each in found.findings if each.is_trouble] if index in list_snapshots(self.files) else []

    def closer(self, file: str) -> list[Finding]:
        """What is wrong with a sealed segment, by the name of its file, and with what lies beside it; in one go."""
        for segment, following in self.sealed():
            if segment_name(segment.first) == file:
                return in_one_go(self.segment(segment, following))
        return []

    def round(self, found: Callable[[list[Finding]], None]) -> Waits:
        """Every file once, as they are when their turn comes; `found` is told what is wrong in one place.

        Raises OSError where a folder cannot be listed, or there is no file or memory left to look with."""
        after = 0
        while pair := next((each for each in self.sealed() if each[0].last.index > after), None):
            after = pair[0].last.index
            yield from self._twice(partial(self.segment, *pair), found)
        for index in list_snapshots(self.files):
            yield from self._twice(partial(self.snapshot, index), found)
        self.files.close()

    def _twice(self, look: Callable[[], Steps[list[Finding]]], found: Callable[[list[Finding]], None]) -> Waits:
        """A look, and where it finds something another."""
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
            return [Finding(self.file, State.DAMAGED, str(error), mend=UNREADABLE)]


def derived(findings: Iterable[Finding]) -> list[str]:
    """The files whose going makes the next start read anew what is damaged: it makes them again from the segment, and
    what the segment has lost comes from the other nodes. None for what no start would mend."""
    names: set[str] = set()
    for finding in findings:
        folder, _, name = finding.file.rpartition("/")
        stem, _, kind = name.partition(".")
        if folder == LOG_FOLDER and stem.isdigit() and finding.mend not in (UNREADABLE, NOT_READ):
            names.add(ledger_name(int(stem)) if kind == "ledger" else index_name(int(stem)))
    return sorted(names)


def mended_for_free(findings: Iterable[Finding], first: int, snapshots: Sequence[int]) -> list[Finding]:
    """Those that a start mends without dropping older history. `first` is where the log begins, `snapshots` are the
    indexes of those on disk. A log that is cut at or before the newest of them begins anew behind it (decision 9)."""
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
    """Which of those snapshots the findings are about."""
    return [index for index in indexes if any(each.file.startswith(snapshot_folder(index)) for each in findings)]
