"""Keeps when the newest entries were durable here, acknowledged by followers, and committed: pure.

A replica has one while traces are on (`trace.endpoint`). It costs an append for each sync, acknowledgement and commit,
however many writes are in them. `raftlog.cluster.http.spans` asks for a sampled write. Times are seconds of the clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from raftlog.raft.types import NodeId

STEPS_KEPT: Final = 8_192
"""Newest syncs, commits, and acknowledgements of each follower: some seconds of a busy node."""

_Times = deque[tuple[int, float, float]]
"""An index that was reached, and the time from which on and at which."""


class WriteSteps(NamedTuple):
    """The steps of one write, as far as this node knows them."""

    proposed: float | None  # only on the leader
    synced: tuple[float, float] | None  # begin and end, on this node's disk
    acknowledged: tuple[tuple[NodeId, float], ...]  # by followers, only on the leader
    committed: float | None


class StepTimes:
    """The newest times of one replica. Belongs to the event loop."""

    def __init__(self) -> None:
        self._synced, self._committed = _Times(maxlen=STEPS_KEPT), _Times(maxlen=STEPS_KEPT)
        self._acknowledged: dict[NodeId, _Times] = {}

    def synced(self, last: int, began: float, now: float) -> None:
        """Everything up to the index `last` is durable here."""
        self._synced.append((last, began, now))

    def committed(self, index: int, now: float) -> None:
        """Everything up to the index is committed, and this node knows it."""
        self._committed.append((index, now, now))

    def acknowledged(self, peer: NodeId, match: int, now: float) -> None:
        """The follower says that everything up to `match` is durable there. An answer to an older heartbeat names less,
        and is left out."""
        times = self._acknowledged.get(peer)
        if times is None:
            times = self._acknowledged[peer] = _Times(maxlen=STEPS_KEPT)
        if not times or times[-1][0] < match:
            times.append((match, now, now))

    def of(self, index: int, appended: Sequence[tuple[int, float]]) -> WriteSteps:
        """The steps of the entry with that index. `appended` has the proposals of this leader: last index, and time."""
        place = bisect_left(appended, (index, 0.0))
        proposed = appended[place][1] if place < len(appended) else None
        committed = _first_with(self._committed, index)
        found = [(peer, _first_with(times, index)) for peer, times in sorted(self._acknowledged.items())]
        acknowledged = tuple((peer, times[1]) for peer, times in found if times is not None)
        return WriteSteps(proposed, _first_with(self._synced, index), acknowledged, committed and committed[1])


def _first_with(times: _Times, index: int) -> tuple[float, float] | None:
    """The times of the first that reaches the index, since the log was cut last: before that other entries had it."""
    first = None
    for each in reversed(times):
        if each[0] < index or (first is not None and each[0] > first[0]):
            break
        first = each
    return None if first is None else first[1:]
