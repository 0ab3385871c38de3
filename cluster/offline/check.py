"""Checks the whole data folder of a stopped node, and changes nothing.

`raftlog disk check` calls it. It reads identity, hard state, snapshots, then every segment with its .idx and .ledger,
in the order of a start. Meanwhile it holds the node's lock (shared), so that no node starts on the folder; it refuses
the folder of a running node. The code of a start (`raftlog.raft.wal.recovery`) says what a start would do, and none of
its operations are carried out.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from raftlog.cluster.files.check_ledger import looking_at_ledger
from raftlog.cluster.files.check_segment import header_of, looking_at_segment
from raftlog.cluster.files.check_snapshots import look_at_snapshots
from raftlog.cluster.files.errors import REPLACE, RESTORE
from raftlog.cluster.files.findings import (
    HEALS,
    NEWER_CODE,
    NEXT_START,
    NOT_READ,
    REMOVE,
    FileHealth,
    Finding,
    NotLooked,
    Report,
    in_one_go,
)
from raftlog.cluster.files.folder import IDENTITY, LOST_AND_FOUND, SHARD, DiskIdentity, parse_identity
from raftlog.cluster.files.reserve import RESERVE
from raftlog.cluster.files.stopped_folder import OnBytesRead, WatchedFiles, held
from raftlog.raft.codec.checks import Corrupt, UnknownVersion
from raftlog.raft.configuration import Configuration
from raftlog.raft.types import HardState
from raftlog.raft.wal import divergence, repair
from raftlog.raft.wal.formats import (
    HARD_STATE,
    HARD_STATE_BYTES,
    HARD_STATE_SLOT,
    LOG_FOLDER,
    SEGMENT_HEADER_SIZE,
    SLOT_SIZE,
    ForeignFile,
    LogIdentity,
    SegmentHeader,
    Slot,
    decode_segment_header,
    decode_slot,
    index_name,
    ledger_name,
    segment_name,
)
from raftlog.raft.wal.journal import Segment
from raftlog.raft.wal.kept_log import KEPT
from raftlog.raft.wal.opening import intact_snapshots
from raftlog.raft.wal.operations import end_of_bytes
from raftlog.raft.wal.recovery import HardStateDamaged, recover_hard_state, recover_log
from raftlog.raft.wal.snapshot_files import SNAPSHOTS, is_installing

_LOG_ID_AT: Final = 8  # of the 16 bytes in a hard state slot and in the header of a segment
_WRITES_BOTH: Final = "nothing: a start writes both"
_KNOWN: Final = (IDENTITY, f"{IDENTITY}.new", SHARD, RESERVE, LOST_AND_FOUND)


def check_folder(directory: Path | str, progress: OnBytesRead | None = None) -> Report:
    """Reads everything. Raises FolderMissing, FolderLocked or NotLooked; damage is in the report."""
    folder = Path(directory)
    try:
        with held(folder):
            return _Check(folder, progress).run()
    except OSError as error:
        raise NotLooked(f"{folder}: {error}; run it as a user with the right to read there") from error


class _Check:
    """One check of one folder."""

    def __init__(self, folder: Path, progress: OnBytesRead | None) -> None:
        self._folder = folder
        self._files = WatchedFiles(folder / SHARD, progress)
        self._findings: list[Finding] = []
        self._configurations: list[tuple[int, Configuration]] = []

    def run(self) -> Report:
        """Checks every file, in the order of a start."""
        files = self._files
        try:
            identity = self._identity()
            log = self._whose(identity)
            first = last = 0
            mends = ""
            refusal = "; ".join(each.what for each in self._findings if each.state is not FileHealth.INTACT)
            if log is not None:
                slot = self._hard_state(log)
                snapshots = look_at_snapshots(log, files)
                self._findings += snapshots.findings
                self._configurations += snapshots.configurations
                first, last, ledger_last = self._log(log, slot, snapshots.intact)
                if not refusal and identity is not None:
                    refusal, mends = self._start(log, identity.node, snapshots.intact, first, ledger_last)
            self._strangers()
            if identity is not None:
                self._is_member(identity)
        finally:
            files.close()
        shown = [_placed(finding) for finding in self._findings]
        node, log_id = (identity.node, identity.log_id) if identity else (None, log.log_id.hex() if log else None)
        return Report(str(self._folder), node, log_id, first, last, shown, refusal, mends)

    def _tell(
        self,
        file: str,
        state: FileHealth,
        what: str,
        position: int | None = None,
        mend: str = "",
        index: int | None = None,
    ) -> None:
        self._findings.append(Finding(file, state, what, position, index, mend))

    # -- identity

    def _identity(self) -> DiskIdentity | None:
        mend = "restore it from a copy: `raftlog format` fixed its content for good"
        path = self._folder / IDENTITY
        name = f"../{IDENTITY}"
        if not path.exists():
            self._tell(
                name, FileHealth.MISSING, "the file is missing, so the node of this folder is unknown", None, mend
            )
            return None
        try:
            identity = parse_identity(path.read_bytes())
        except UnknownVersion as error:
            self._tell(name, FileHealth.NEWER, str(error), 0, NEWER_CODE)
            return None
        except Corrupt as error:
            self._tell(name, FileHealth.DAMAGED, str(error), 0, mend)
            return None
        what = f"node {identity.node} of log {identity.log_id}, incarnation {identity.incarnation}"
        self._tell(name, FileHealth.INTACT, what)
        return identity

    def _whose(self, identity: DiskIdentity | None) -> LogIdentity | None:
        """The log as whose files they are read: the identity's, unless all files name one other log."""
        own = None if identity is None else LogIdentity(bytes.fromhex(identity.log_id))
        logs = self._logs_of_files()
        if len(logs) != 1 or own in logs:
            return own
        (log,) = logs
        if own is not None:
            what = (
                f"every file beside it belongs to log {log.log_id.hex()}: this file was changed, or is another node's"
            )
            mend = "restore it from a copy, or give the node its own folder"
            self._tell(f"../{IDENTITY}", FileHealth.FOREIGN, what, 0, mend)
        return log

    def _logs_of_files(self) -> set[LogIdentity]:
        """The logs that the files themselves name."""
        files = self._files
        segments = [f"{LOG_FOLDER}/{name}" for name in files.names(LOG_FOLDER) if name.endswith(".seg")]
        logs: set[LogIdentity] = set()
        for name in [HARD_STATE, *segments]:
            log = LogIdentity(files.read(name, _LOG_ID_AT, 16))
            with suppress(Corrupt, UnknownVersion, ForeignFile):
                if name == HARD_STATE:
                    decode_slot(log, files.read(name, 0, SLOT_SIZE))
                else:
                    decode_segment_header(log, files.read(name, 0, SEGMENT_HEADER_SIZE))
                logs.add(log)
        return logs

    def _is_member(self, identity: DiskIdentity) -> None:
        """A configuration that names this number or incarnation must name both together."""
        named = [
            (index, member)
            for index, configuration in self._configurations
            for member in configuration.members
            if member.node == identity.node or member.incarnation == identity.incarnation
        ]
        if not named or any((m.node, m.incarnation) == (identity.node, identity.incarnation) for _, m in named):
            return
        index, member = named[-1]
        what = (
            f"the log (entry {index}) knows node {member.node} with incarnation {member.incarnation}: this file was "
            "changed, or this disk belongs to a node that was replaced"
        )
        self._tell(
            f"../{IDENTITY}", FileHealth.FOREIGN, what, 0, "restore it from a copy, or give the node its own folder"
        )

    # -- hard state

    def _hard_state(self, log: LogIdentity) -> Slot:
        files = self._files
        size = files.size(HARD_STATE)
        if size < 0:
            self._tell(HARD_STATE, FileHealth.MISSING, "there is no such file: term and vote are lost", None, RESTORE)
            return Slot(0, HardState())
        state, mend = FileHealth.DAMAGED, RESTORE
        try:
            slot, damage = recover_hard_state(log, files)
        except (HardStateDamaged, ForeignFile, UnknownVersion) as error:
            if isinstance(error, UnknownVersion):
                state, mend = FileHealth.NEWER, NEWER_CODE
            elif isinstance(error, ForeignFile):
                state = FileHealth.FOREIGN
            self._tell(HARD_STATE, state, f"{error}; this node may not vote again", None, mend)
            slot, damage = Slot(0, HardState()), [str(error)]
        else:
            for what in damage:
                start = HARD_STATE_SLOT * (": slot 1:" in what)
                what = f"{what.removeprefix(f'{HARD_STATE}: ')}; the other slot is intact"
                self._tell(HARD_STATE, state, what, start, _WRITES_BOTH)
        if size < HARD_STATE_SLOT + SLOT_SIZE:
            self._tell(HARD_STATE, state, f"cut short: {size} of {HARD_STATE_BYTES} bytes", size, NEXT_START)
        for start, end in ((SLOT_SIZE, HARD_STATE_SLOT), (HARD_STATE_SLOT + SLOT_SIZE, size)):
            if (last := end_of_bytes(files, HARD_STATE, start, end)) > start:
                self._tell(HARD_STATE, state, f"bytes up to {last} behind a slot", start, NOT_READ)
        if not damage and files.read(HARD_STATE, 0, SLOT_SIZE) != files.read(HARD_STATE, HARD_STATE_SLOT, SLOT_SIZE):
            what = "the newer slot was not repeated in the other one yet"
            self._tell(HARD_STATE, FileHealth.UNFINISHED, what, None, _WRITES_BOTH)
        elif not damage:
            cut = f", a cut after {slot.cut} under way" if slot.cut else ""
            what = f"term {slot.state.term}, vote {slot.state.vote}, boot {slot.state.boot}{cut}"
            self._tell(HARD_STATE, FileHealth.INTACT, what)
        return slot

    # -- log

    def _log(self, log: LogIdentity, slot: Slot, snapshots: list[int]) -> tuple[int, int, int]:
        """Checks every segment.

        Returns the oldest index, the newest without a gap, and the newest index with effects.
        """
        files = self._files
        if snapshots and is_installing(files, snapshots[0]):
            what = f"it was being replaced by the snapshot of {snapshots[0]}"
            self._tell(LOG_FOLDER, FileHealth.UNFINISHED, what, None, "nothing: the next start finishes that")
            return snapshots[0] + 1, snapshots[0], snapshots[0]
        names = files.names(LOG_FOLDER)
        firsts = sorted(int(name[:-4]) for name in names if _is_segment(name))
        if slot.cut:
            for first in [first for first in firsts[1:] if first > slot.cut]:
                firsts.remove(first)
                what = f"behind index {slot.cut}, after which the log is being cut"
                self._tell(segment_name(first), FileHealth.UNFINISHED, what, None, "nothing: the next start drops it")
        self._names(names, firsts)
        if not firsts:
            self._tell(LOG_FOLDER, FileHealth.MISSING, "there is no segment", None, HEALS)
            return 0, 0, 0
        headers = [header_of(log, files, first) for first in firsts]
        self._findings += [each for each in headers if isinstance(each, Finding)]
        first = firsts[0]
        if first > 1 and not any(index >= first - 1 for index in snapshots):  # they must be in a snapshot
            what = f"records 1 to {first - 1}: neither a segment nor an intact snapshot has them"
            self._tell(LOG_FOLDER, FileHealth.MISSING, what, None, RESTORE)
        last = ledger_last = first - 1
        durable = snapshots[0] if snapshots else 0
        for header, after in pairwise([*headers, None]):
            if not isinstance(header, SegmentHeader):
                continue
            following = after if isinstance(after, SegmentHeader) else None
            cut = 0 if following else slot.cut
            looked = in_one_go(looking_at_segment(log, files, header, following, durable, cut))
            self._configurations += looked.configurations
            if last == looked.segment.previous.index:
                last = looked.segment.last.index
            mend = _ledger_mend(first, looked.segment, snapshots)
            steps = looking_at_ledger(log, files, looked, is_sealed=following is not None, mend=mend)
            ledger = in_one_go(steps)
            if ledger_last == looked.segment.previous.index:
                ledger_last = ledger.last
            self._findings += [_cutting(each) if cut else each for each in (*looked.findings, ledger.finding)]
        return first, last, ledger_last

    def _names(self, names: list[str], firsts: list[int]) -> None:
        """The other names in the folder of the log."""
        known = {path(first) for first in firsts for path in (segment_name, index_name, ledger_name)}
        for name in names:
            path = f"{LOG_FOLDER}/{name}"
            if path in known or _is_segment(name):  # a segment behind a cut that is under way is reported by then
                continue
            if name.startswith("spare-"):
                what = "made ahead for the next segment, or half fetched; dropped at a start"
                self._tell(path, FileHealth.INTACT, what)
            elif name.endswith((".idx", ".ledger")):
                self._tell(path, FileHealth.UNFINISHED, "it has no segment", None, "nothing: the next start drops it")
            else:
                self._tell(path, FileHealth.UNKNOWN, "not a file of raftlog: left alone")

    # -- the whole

    def _start(
        self, log: LogIdentity, node: int, snapshots: list[int], first: int, ledger_last: int
    ) -> tuple[str, str]:
        """Why a node would not start, and what a start would repair, from the code that starts it."""
        damage = None
        try:
            slot, _ = recover_hard_state(log, self._files)
            if snapshots and is_installing(self._files, snapshots[0]):
                return "", ""
            recovery = recover_log(log, self._files, slot, snapshots[0] if snapshots else 0)
        except (HardStateDamaged, UnknownVersion, ForeignFile) as error:
            return str(error), ""
        if recovery.damage is not None:
            what, damage = str(recovery.damage), recovery.damage
            if self._files.size(damage.file) < 0 and damage.file != LOG_FOLDER:
                self._tell(damage.file, FileHealth.MISSING, damage.reason, None, HEALS, damage.index)
        elif first > 1 and not any(first - 1 <= index <= ledger_last for index in snapshots):
            what = f"the log begins at {first} and no usable snapshot reaches that far"
        else:
            return self._rebuild(log, recovery.segments[0].first), ""
        try:
            begun = repair.begin(log, self._files, slot, node, damage, intact_snapshots(self._files, log, [], []))
        except repair.Irreparable as error:
            return f"{what}; {error}", ""
        return "", f"cuts its log after index {begun.cut}; it heals from the other nodes, and has no vote until then"

    def _rebuild(self, log: LogIdentity, first: int) -> str:
        """Why a start could not rebuild a wrong state; empty: it could, or need not."""
        note = divergence.find(log, self._files)
        if note is not None:
            try:
                divergence.trusted(note, intact_snapshots(self._files, log, [], []), first)
            except divergence.CannotRebuild as error:
                return f"{error}; {REPLACE}"
        return ""

    def _strangers(self) -> None:
        """The names in the folder that are not raftlog's."""
        for path in sorted(self._folder.iterdir()):
            if path.name == f"{IDENTITY}.new":
                self._tell(
                    f"../{path.name}", FileHealth.UNFINISHED, "`raftlog format` was interrupted: the file is never read"
                )
            elif path.name not in _KNOWN:
                self._tell(f"../{path.name}", FileHealth.UNKNOWN, "not a file of raftlog: left alone")
        for name in self._files.names(""):
            if name == repair.QUARANTINE:
                self._tell(name, FileHealth.INTACT, f"what starts set aside: {', '.join(self._files.names(name))}")
            elif name == KEPT:
                self._tell(name, FileHealth.INTACT, "the log that a snapshot replaced: the node moves it back")
            elif name == divergence.NOTE:
                self._tell(name, FileHealth.UNFINISHED, "its state was wrong: the next start rebuilds it from the log")
            elif name not in (HARD_STATE, LOG_FOLDER, SNAPSHOTS):
                self._tell(name, FileHealth.UNKNOWN, "not a file of raftlog: left alone")


def _ledger_mend(first: int, segment: Segment, snapshots: list[int]) -> str:
    """The advice for a ledger that must be made again, in a log that begins at `first`."""
    usable = [index for index in snapshots if first - 1 <= index <= segment.previous.index]
    if not usable and first > 1:
        return RESTORE
    origin = f"the snapshot of {usable[0]}" if usable else "the beginning of the log"
    return f"{REMOVE.partition(':')[0]}: the next start replays from {origin} and makes it again"


def _cutting(finding: Finding) -> Finding:
    """While a cut is under way, .idx and .ledger may continue after it."""
    if finding.state is not FileHealth.DAMAGED or finding.file.endswith(".seg"):
        return finding
    return replace(finding, state=FileHealth.UNFINISHED, mend="nothing: the next start finishes the cut")


def _placed(finding: Finding) -> Finding:
    """The finding with its file as seen from the data folder."""
    name = finding.file.removeprefix("../") if finding.file.startswith("../") else f"{SHARD}/{finding.file}"
    return replace(finding, file=name)


def _is_segment(name: str) -> bool:
    return name.endswith(".seg") and name[:-4].isdigit() and segment_name(int(name[:-4])) == f"{LOG_FOLDER}/{name}"
