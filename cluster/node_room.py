"""What a node does on a full disk: takes only what makes room, and sees to it that what was trimmed is deleted.

Files of the log go when two snapshots cover them (`raft.retention.may_go`). On a full disk few records come that would
make a snapshot due, so they are saved for this alone, and the leader moves the log on with clock entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cluster import clock
from raft.codec import Corrupt, UnknownVersion, decode_blocks, decode_records
from raft.refusals import Refused
from raft.types import EntryKind
from statemachine.commands import Operation
from statemachine.consumers import ConsumerAction, MalformedConsumer, UnknownConsumer, decode_consumer

if TYPE_CHECKING:
    from cluster.node import Node

LOOK_S: Final = 0.25
SAVE_PAUSE_S: Final = 2.0  # between two snapshots that are saved to make room
_ALONE: Final = (int(Operation.TRIM), int(Operation.COMPACT))


def makes_room(block: bytes) -> bool:
    """Whether a request does nothing but let go: trims the log, compacts the history of keys, deletes a consumer group
    that holds the log back."""
    try:
        ((record,),) = [list(decode_records(each)) for each in decode_blocks(block)]
        if record.operation == Operation.CONSUMER and record.value is not None:
            return decode_consumer(record.value).action == ConsumerAction.DELETE
    except (Corrupt, UnknownVersion, UnknownConsumer, MalformedConsumer, ValueError):  # more than one record too
        return False
    return record.operation in _ALONE


class RoomWork:
    """One node's. Not thread-safe: it belongs to the node's event loop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._look_at = self._save_at = 0.0
        self.takes_to = 0  # entries that begin at or before this index help to make room here (`DiskReport.takes_to`)
        self.trim_index = node.applied  # of the newest entry known here that lets go of something, or a later one
        self._let_go = (node.oldest, node.machine.compacted_revision)
        node.metrics.gauge(
            "raftlog_disk_reserve_bytes", "Kept on this disk for when it is full; 0: it is full, and this was given up",
            lambda: node.disk.reserve_bytes,
        )  # fmt: skip

    def look_if_due(self, mono: float) -> None:
        """Looks for room, and for what may be done to make some."""
        node = self._node
        if mono < self._look_at:
            return
        self._look_at = mono + LOOK_S
        let_go = (node.oldest, node.machine.compacted_revision)
        if let_go != self._let_go:
            self._let_go, self.trim_index = let_go, node.applied
        # what was given up is left to a batch that waits for room, and to a snapshot
        node.disk.keep_reserve(may_make=not node.syncer.is_waiting and not node.snapshots.is_under_way)
        node.syncer.look_for_room()
        is_making_room = not node.syncer.has_space and node.disk.has_trimmed(node.machine.oldest)
        needs_entry = is_making_room and node.applied <= node.snapshots.index  # for a second snapshot, of a later index
        self.takes_to = node.applied + 1 if needs_entry and not node.is_leader else 0
        if is_making_room and mono >= self._save_at:
            if node.applied > node.snapshots.index:
                if node.snapshots.save():
                    self._save_at = mono + SAVE_PAUSE_S
            elif node.is_leader:
                self.move_log()

    def move_log(self) -> None:
        """As the leader: commits one more clock entry, so that a snapshot of a later index can be saved."""
        node = self._node
        if node.clock_proposed <= node.applied:
            try:
                node.clock_proposed = node.core.propose(EntryKind.CLOCK, 1, b"", clock.read()).last
            except Refused:
                pass  # something else moves the log
