"""Repairs a damaged log: which part stays, which is set aside, and when the node's word counts again.

The lost entries had been acknowledged, so the remaining log must not vote: a candidate without them could win although
they are committed. So before a file is touched, one write of the hard state records two facts. The *floor* is a term
above all in which this node ever promised anything; until then it has no vote. The other fact is where the log is
*cut*. A crash at any later point ends in the same place: the next start finds the cut, and finishes it. The node's own
term stays, so that the leader goes on; `raftlog.raft.consensus.recall` says when the node has healed.

Why the floor is a term, and what follows from it: docs/decisions/0009-a-damaged-log-heals-under-a-floor.md and 0017.
Protocol-Aware Recovery (FAST'18); pitfall 64: a torn tail confused with damage; pitfall 66: a damaged node that wins an
election.

    quarantine/log-<floor:020d>/   the part that was cut away, as it was found
    quarantine/snapshot-<index:020d>/   a snapshot that failed its check
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from raftlog.raft.codec.configuration import decode_configuration
from raftlog.raft.configuration import Configuration
from raftlog.raft.types import NEW_DISK, NodeId
from raftlog.raft.wal.formats import LOG_FOLDER, LogIdentity, Slot
from raftlog.raft.wal.operations import (
    WINDOW,
    Create,
    Delete,
    DeleteFolder,
    FileOperation,
    Files,
    MakeFolder,
    Rename,
    Sync,
    SyncFolder,
    Write,
    end_of_bytes,
)
from raftlog.raft.wal.recovery import Damage, Recovery, recover_log, scan
from raftlog.raft.wal.snapshot_files import StoredSnapshot, snapshot_folder

QUARANTINE: Final = "quarantine"
LOG_IS_ASIDE: Final = "has the part that was cut from the log"
SNAPSHOT_IS_ASIDE: Final = "has the damaged snapshot"
"""In the notices of a start that moved something to the quarantine."""
QUARANTINES_KEPT: Final = 2
"""Of each kind: the newest ones. Looking at two is enough to see whether a disk fails again."""
QUARANTINE_BYTES_MAX: Final = 256 << 20
"""Bytes that are kept of one damaged log. The segment with the cut is always kept, or the oldest one if the whole log
goes. Later segments are kept while they fit, oldest first. So a later damaged segment may be missing where segments are
large. The peers have the intact entries.
"""


class Irreparable(ValueError):
    """This log cannot be repaired here; the message gives the reason."""


def begin(
    log: LogIdentity, files: Files, slot: Slot, node: NodeId, damage: Damage | None, snapshots: list[StoredSnapshot]
) -> Slot:
    """The hard state with which the repair begins: where the log is cut, and the floor. Raises Irreparable.

    `damage` is the damage that a start met; None if log and snapshots do not fit together. `snapshots` are the intact
    ones, newest first. If the intact part of the log ends at or before a snapshot, the cut is that snapshot's index:
    then the whole log goes, and begins again after it.
    """
    newest = snapshots[0] if snapshots else None
    base = newest.mark.index if newest is not None else 0
    cut, configuration = _intact_until(log, files, slot, damage.index if damage is not None else 0, base)
    if newest is not None and configuration is None:
        cut, configuration = base, newest.configuration
    if configuration is None:
        raise Irreparable("nothing before it is intact, so the members are unknown")
    if side := configuration.needs(node):
        raise Irreparable(f"of the voters {list(side)} no majority can go on without this node and heal it")
    if slot.is_mending:  # nothing was promised since
        return replace(slot, sequence=slot.sequence + 1, cut=cut)
    state = replace(slot.state, floor=min(NEW_DISK, max(slot.state.term, slot.floor) + 1))
    return replace(slot, sequence=slot.sequence + 1, state=state, cut=cut, is_mending=True)


def lost_term(files: Files, slot: Slot, node: NodeId, recovery: Recovery, snapshots: list[StoredSnapshot]) -> Slot:
    """The hard state of a node whose log ends in a newer term than its hard state knows.

    The disk answered syncs of the hard state, and lost what those syncs should have made durable.

    The node may have voted in the term of that entry, and in later ones. So it votes for no other node in that term,
    and goes under a floor. It gets no floor if no majority could go on without it; then only peers can find the lost
    promises.
    """
    term = recovery.segments[-1].last.term
    _, configuration = _newest_configuration(files, recovery)
    if configuration is None and snapshots:
        configuration = snapshots[0].configuration
    floor = slot.floor
    if configuration is not None and not configuration.needs(node):
        floor = max(floor, term + 1)
    return replace(slot, state=replace(slot.state, term=term, vote=node, floor=floor))


def _intact_until(log: LogIdentity, files: Files, slot: Slot, cut: int, base: int) -> tuple[int, Configuration | None]:
    """The end of an entry up to which the log is whole, at most `cut`, and the newest configuration up to there.

    The configuration is None if that end is not above `base`, or if the log has none. This only simulates a start.
    """
    while cut > base:
        recovery = recover_log(log, files, replace(slot, cut=cut))
        if recovery.damage is None:
            first = recovery.segments[0].first
            if first > 1 and base < first - 1:
                return cut, None  # the state before it is in no snapshot
            damage, configuration = _newest_configuration(files, recovery)
            if damage is None:
                return cut, configuration
        else:
            damage = recovery.damage
        if damage.index >= cut:
            break
        cut = damage.index
    return cut, None


def _newest_configuration(files: Files, recovery: Recovery) -> tuple[Damage | None, Configuration | None]:
    """The newest configuration in the log, or the damage that hides it; neither: there is none."""
    for segment in reversed(recovery.segments):
        if not segment.configurations:
            continue
        wanted, name = segment.configurations[-1], segment.name
        intact = segment.previous.index
        for found in scan(files, name, segment.header):
            if found.entry is None:
                return Damage(name, found.position, intact, found.reason), None
            intact = found.entry.index
            if intact == wanted:
                return None, decode_configuration(found.entry.data)
    return None, None


def newest_below(snapshots: list[StoredSnapshot], cut: int) -> StoredSnapshot | None:
    """The snapshot for which a repair drops the log, None where it cuts it."""
    return next((snapshot for snapshot in snapshots if snapshot.mark.index == cut), None)


def set_aside(files: Files, slot: Slot, *, is_all: bool, notices: list[str]) -> Iterator[list[FileOperation]]:
    """Moves the part of the log that the cut of `slot` removes to the quarantine, and copies the segment that it cuts
    into.

    `is_all`: every file. Returns groups of operations, in order. After a crash they may run again: existing files stay.
    """
    folder = f"{QUARANTINE}/log-{slot.floor:020d}"
    yield [MakeFolder(folder), SyncFolder(QUARANTINE), SyncFolder("")]
    names = files.names(LOG_FOLDER)
    stems = sorted({stem for name in names if (stem := name.partition(".")[0]).isdigit()}, key=int)
    kept = [stem for stem in stems if f"{stem}.seg" in names and int(stem) <= slot.cut and not is_all]
    if kept:
        yield from _copy(files, f"{LOG_FOLDER}/{kept[-1]}.seg", f"{folder}/{kept[-1]}.seg")
    room = QUARANTINE_BYTES_MAX
    dropped: list[str] = []
    for stem in stems:
        if int(stem) <= slot.cut and not is_all:
            continue
        room -= max(0, files.size(f"{LOG_FOLDER}/{stem}.seg"))
        is_kept = room >= 0 or (stem == stems[0] and not kept)
        if not is_kept:
            dropped.append(stem)
        for name in (f"{stem}.seg", f"{stem}.idx", f"{stem}.ledger"):
            if name in names:
                is_there = files.size(f"{folder}/{name}") >= 0  # a crash came between
                yield [
                    Rename(f"{LOG_FOLDER}/{name}", f"{folder}/{name}")
                    if is_kept and not is_there
                    else Delete(f"{LOG_FOLDER}/{name}")
                ]
    yield [
        *(Delete(f"{LOG_FOLDER}/{name}") for name in names if is_all and name.startswith("spare-")),
        SyncFolder(folder),
        SyncFolder(LOG_FOLDER),
    ]
    notices.append(f"{folder} {LOG_IS_ASIDE}: look at it, then remove it")
    if dropped:
        notices.append(
            f"the segments {', '.join(dropped)} are not kept: {QUARANTINE_BYTES_MAX} bytes are the limit there"
        )
    yield prune(files, "log-", notices)


def _copy(files: Files, name: str, to: str) -> Iterator[list[FileOperation]]:
    """A copy of a segment without the zeros at its end, under its name once it is whole."""
    if files.size(to) >= 0:
        return
    part = f"{to}.part"
    yield [Create(part, b"")]
    end = end_of_bytes(files, name, 0, max(0, files.size(name)))
    for position in range(0, end, WINDOW):
        yield [Write(part, position, files.read(name, position, min(WINDOW, end - position)))]
    yield [Sync(part), Rename(part, to), SyncFolder(to.rpartition("/")[0])]


def set_snapshot_aside(files: Files, index: int, notices: list[str]) -> list[FileOperation]:
    """Moves a snapshot that failed its check to the quarantine: there it is in nobody's way."""
    folder = f"{QUARANTINE}/snapshot-{index:020d}"
    notices.append(f"{folder} {SNAPSHOT_IS_ASIDE}: look at it, then remove it")
    move: list[FileOperation] = [MakeFolder(QUARANTINE), DeleteFolder(folder), Rename(snapshot_folder(index), folder)]
    return [*move, SyncFolder(QUARANTINE), SyncFolder(""), *prune(files, "snapshot-", notices)]


def prune(files: Files, kind: str, notices: list[str]) -> list[FileOperation]:
    """Removes all but the newest of a kind from the quarantine, and says so."""
    old = [name for name in files.names(QUARANTINE) if name.startswith(kind)][:-QUARANTINES_KEPT]
    notices += [f"{QUARANTINE}/{name} was removed: the newest {QUARANTINES_KEPT} are kept" for name in old]
    return [DeleteFolder(f"{QUARANTINE}/{name}") for name in old]
