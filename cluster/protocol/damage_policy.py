"""Decides when a running node may end for damage in its files: only while all others are well (docs/decisions/0011).

Pure. The server (`raftlog.cluster.replica.upkeep.damage`) and the simulator call it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from raftlog.cluster.protocol.digest_points import DigestPoints
from raftlog.raft.configuration import Configuration
from raftlog.raft.types import NodeId

FIRST_LOOK_S: Final = 1.5
"""Longest wait between damage that was found and the first look at the others, in seconds; drawn at random."""
RETRY_S: Final = 3.0
"""Pause between two checks whether the others are well, in seconds, plus or minus half: no two nodes end together."""
POINT_S: Final = 2.0
"""Longest wait until a digest point is committed and every voter has reported it, in seconds."""
LOOK_S: Final = 0.02
"""Pause between two checks whether it is reported, in seconds."""


class Leadership(NamedTuple):
    """The leader and its term."""

    term: int
    leader: NodeId


class Probe(NamedTuple):
    """A digest point that the node had committed to learn whether all others are well."""

    last: int
    term: int
    leadership: Leadership  # when it was proposed


def are_others_well(
    points: DigestPoints, configuration: Configuration, asked: Probe, now: Leadership, *, links_up: Callable[[], bool]
) -> bool | None:
    """Whether every voter runs, and none repairs its log. None: not all have reported the point yet.

    A node that repairs its log reports nothing (`DigestPoints.is_healing`).
    """
    if not points.is_reported(configuration, asked.last):
        return None
    return now == asked.leadership and asked.term == now.term and links_up()
