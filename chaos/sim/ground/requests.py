"""Goes through the requests of an applied entry, for the judges that look at each of them."""

from __future__ import annotations

from collections.abc import Iterator

from raftlog.raft.codec.block import Block, decode_blocks
from raftlog.raft.types import Entry, EntryKind
from raftlog.statemachine.effects import Effects, RequestEffect


def requests_of(entry: Entry, effects: Effects) -> Iterator[tuple[int, Block, RequestEffect | None]]:
    """Each request of an entry of commands: the index of its last record, its block, and its effect. An entry of plain
    appends has no effects of its requests: each is None."""
    if entry.kind is EntryKind.COMMANDS:
        last = entry.before
        for number, block in enumerate(decode_blocks(entry.data)):
            last += block.count
            yield last, block, effects.requests[number] if effects.requests else None
