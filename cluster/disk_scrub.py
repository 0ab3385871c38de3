"""Reads the files of a running node again and again, a little at a time, and says which are damaged.

Sealed segments with their .idx and .ledger, and snapshots: with the very looks of `raftlog disk check`, in a thread of
its own. The newest segment is left out: it is still written, and a start reads it whole. What a second look does not
find again was a file that changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Final, Protocol

from cluster.clock import monotonic
from cluster.disk_check_ledger import looking_at_ledger
from cluster.disk_check_segment import looking_at_segment
from cluster.disk_check_snapshots import Snapshots, looking_at_snapshot
from cluster.disk_files import ShardFiles
from cluster.disk_findings import NEXT_START, NOT_READ, REREAD, Finding, State, Steps, in_one_go
from raft.codec import Corrupt, UnknownVersion
from raft.formats import SEGMENT_HEADER_SIZE, ForeignFile, decode_segment_header
from raft.journal import LOG_FOLDER, Journal, Segment, index_name, ledger_name, segment_name
from raft.operations import Files
from raft.storage_ledger import Ledger
from raft.storage_snapshots import list_snapshots, snapshot_folder

SLICE_S: Final = 0.0005
"""Read and checked in one go: the event loop, which needs the same processor, waits no longer than that."""
SHARE: Final = 20
"""A slice is followed by a pause of so many times its length: no more than a twentieth of a processor."""
BUSY_S: Final = 0.1
"""A slice waits so long for a writing thread that has work, then it comes all the same."""
BUSY_LOOK_S: Final = 0.002
AGAIN_S: Final = 1.0
"""Before the second look."""
UNREADABLE: Final = (
    "the disk cannot read it: look at the disk, and put another in its place (`raftlog members replace`)"
)

Waits = Generator[float, None, None]
"""Steps, each with the seconds to wait after it."""


class Reading(Files, Protocol):
    """Files that may be kept open from one look to the next."""

    bytes: int
    """Read so far."""

    def close(self) -> None:
        """Whoever has another file's place is read from now on."""


class CountedFiles(ShardFiles):
    """Files that are only read; they count how much."""

    __slots__ = ("bytes",)

    def __init__(self, root: Path) -> None:
        super().__init__(root, read_only=True)
        self.bytes = 0

    def read(self, name: str, position: int, size: int) -> bytes:
        """As ShardFiles."""
        data = super().read(name, position, size)
        self.bytes += len(data)
        return data


class Looker:
    """Looks at the files of a shard that is in use. Belongs to one thread. Pure: the simulator drives it too."""

    def __init__(self, files: Reading, journal: Journal, ledger: Ledger) -> None:
        self.files = files
        self.file = ""  # that is being looked at; empty: none is
        self._journal, self._ledger = journal, ledger

    def sealed(self) -> list[tuple[Segment, Segment]]:
        """The segments that another follows and all of whose rows are written, each with that one, in order."""
        pairs = pairwise(list(self._journal.segments))
        return [pair for pair in pairs if pair[0].last.index <= self._journal.indexed]

    def segment(self, segment: Segment, following: Segment) -> Steps[list[Finding]]:
        """What is wrong with a sealed segment and what lies beside it; nothing once it was dropped or cut."""
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
        if all(pair[0] is not segment for pair in self.sealed()):
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
        """Every file once, as they are when their turn comes; `found` is told what is wrong in one place."""
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
            return [Finding(self.file, State.DAMAGED, str(error), mend=UNREADABLE)]


class Scrub:
    """A thread that reads everything, pauses, and begins anew. Its numbers may be read by any thread."""

    def __init__(
        self,
        looker: Looker,
        found: Callable[[list[Finding]], None],
        is_busy: Callable[[], bool],
        *,
        bytes_per_second: int,
        pause_s: float,
    ) -> None:
        """`found` is told in that thread what is wrong in one place; `is_busy`: the writing thread has work."""
        self._looker, self._found, self._is_busy = looker, found, is_busy
        self._bytes_per_second, self._pause_s = bytes_per_second, pause_s
        self._stop = Event()
        self._thread = Thread(target=self._work, name="disk-scrub", daemon=True)
        self.rounds = 0
        self.ended_at: float | None = None  # the newest round, in seconds of `clock.monotonic`
        if bytes_per_second:
            self._thread.start()

    @property
    def bytes(self) -> int:
        """Read so far."""
        return self._looker.files.bytes

    @property
    def file(self) -> str:
        """That is being read; empty: none is."""
        return self._looker.file

    def stop(self, timeout_s: float) -> bool:
        """Ends it. Returns whether it has ended in time."""
        self._stop.set()
        if self._bytes_per_second:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # -- in the thread

    def _work(self) -> None:
        while not self._stop.is_set():
            for seconds in self._sliced(self._looker.round(self._found)):
                if self._stop.wait(seconds):
                    break
            else:
                self.rounds += 1
                self.ended_at = monotonic()
                self._stop.wait(self._pause_s)
        self._looker.files.close()

    def _sliced(self, steps: Waits) -> Waits:
        """As many steps as fit in a slice, then a pause."""
        is_over = False
        while not is_over:
            waited = 0.0
            while self._is_busy() and waited < BUSY_S:
                waited += BUSY_LOOK_S
                yield BUSY_LOOK_S
            began, read, seconds = monotonic(), self.bytes, 0.0
            until = began + SLICE_S
            while seconds == 0.0 and monotonic() < until:
                if (step := next(steps, None)) is None:
                    is_over = True
                    break
                seconds = step
            took = monotonic() - began
            yield max(seconds, SHARE * took, (self.bytes - read) / max(1, self._bytes_per_second))


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
