"""When a running node may end for damage in its files: only while all others are well (docs/decisions/0011).

Pure: the server (`cluster.node_damage`) and the simulator drive it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from cluster.points import Points
from raft.configuration import Configuration
from raft.types import NodeId

FIRST_LOOK_S: Final = 1.5
"""Longest wait between damage that was found and the first look at the others, in seconds; drawn at random."""
RETRY_S: Final = 3.0
"""Pause between two looks whether the others are well, give or take a half: two nodes should not end together."""
POINT_S: Final = 2.0
"""So long a digest point may take to be committed, and to be reported by everyone."""
LOOK_S: Final = 0.02
"""How often one looks whether it is reported."""


class Leadership(NamedTuple):
    """Who leads, in which term."""

    term: int
    leader: NodeId


class Asked(NamedTuple):
    """A digest point that was committed to see whether all others are well."""

    last: int
    term: int
    leadership: Leadership  # when it was proposed


def is_alone(configuration: Configuration, node: NodeId) -> bool:
    """Whether nobody could heal that node: then a start would refuse its log."""
    return any(node in side and len(side) < 3 for side in (configuration.voters, configuration.outgoing))


def are_links_up(configuration: Configuration, node: NodeId, is_up: Callable[[NodeId], bool]) -> bool:
    """Whether that node reaches every voter."""
    return all(is_up(peer) for peer in configuration.peers(node) if configuration.is_voter(peer))


def are_others_well(
    points: Points, configuration: Configuration, asked: Asked, now: Leadership, *, links_up: Callable[[], bool]
) -> bool | None:
    """Whether every voter runs, and none heals; None: not all have reported the point yet. A node that heals reports
    nothing (`Points.is_healing`)."""
    if not points.is_reported(configuration, asked.last):
        return None
    return now == asked.leadership and asked.term == now.term and links_up()
