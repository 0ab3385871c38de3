"""Every snapshot is right when it gets its name, whether it was saved or came from a leader (section 7).

It is a committed entry's, and it has the configuration of the log at that entry: a node that installs it perhaps in a
year believes it. The newest snapshot of a disk never becomes older.
"""

from __future__ import annotations

from raftlog.chaos.sim.invariants.known import Knowledge
from raftlog.raft.codec.configuration import decode_configuration
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.types import NodeId
from raftlog.raft.wal.formats import LogIdentity, decode_snapshot_meta
from raftlog.raft.wal.operations import Files
from raftlog.raft.wal.snapshot_files import list_snapshots, snapshot_folder

PROPERTY = "snapshots are right when they are made"
SECTION = "section 7"


def named(known: Knowledge, node: NodeId, log: LogIdentity, files: Files, index: int) -> None:
    """The snapshot of that index has its name now. Raises InvariantBroken."""
    name = f"{snapshot_folder(index)}/meta"
    meta = decode_snapshot_meta(log, files.read(name, 0, max(0, files.size(name))))
    mark = meta.mark
    if mark.index != index or known.chain.get((index, mark.term)) != mark.header_crc:
        raise InvariantBroken(node, PROPERTY, SECTION, f"the snapshot of {index} is of {mark}, which no node appended")
    if not known.is_committed(index, mark.term):
        raise InvariantBroken(node, PROPERTY, SECTION, f"a snapshot of {mark}, which is not committed")
    where = max(each for each in known.configurations if each[0] <= index and known.is_committed(*each))
    found = (meta.configuration_index, decode_configuration(meta.configuration))
    if found != (where[0], known.configurations[where]):
        evidence = f"the snapshot of {index} has configuration {found}, the log has {known.configurations[where]} there"
        raise InvariantBroken(node, PROPERTY, SECTION, evidence)


def removed(node: NodeId, files: Files, index: int) -> None:
    """The snapshot of that index has lost its name. Raises InvariantBroken."""
    if index > (newest := max(list_snapshots(files), default=0)):
        raise InvariantBroken(node, PROPERTY, SECTION, f"that of {index} is gone, the newest one left is of {newest}")
