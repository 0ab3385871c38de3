"""Compiles the grants of a principal into a form that answers a check within a microsecond.

`raftlog.statemachine.access.table` keeps one for each principal until a permission changes. Ranges of one verb are
merged: what lies across two adjacent grants is allowed by both together. A check is one binary search, whatever the
number of grants.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from raftlog.statemachine.access.grants import RANGED, Grant, Resource, Verb

_WRITING: Final = (Verb.WRITE, Verb.APPEND)


class Ranges(NamedTuple):
    """Disjoint ranges in their order; no two of them touch."""

    starts: list[bytes]
    ends: list[bytes]  # b"": to the last key; at most the last one is

    def holds(self, start: bytes, end: bytes) -> bool:
        """Whether one of them holds all keys from `start` to below `end` (b"": to the last)."""
        place = bisect_right(self.starts, start) - 1
        if place < 0:
            return False
        stop = self.ends[place]
        return not stop or (start < stop and b"" != end <= stop)

    def holds_key(self, key: bytes) -> bool:
        """Whether one of them holds the key."""
        place = bisect_right(self.starts, key) - 1
        return place >= 0 and (not (stop := self.ends[place]) or key < stop)


_NONE: Final = Ranges([], [])


class Permissions:
    """What a principal may do: the union of the grants of its roles."""

    __slots__ = ("_everywhere", "_ranges", "is_admin", "may_write")

    def __init__(self, grants: Iterable[Grant]) -> None:
        by_kind: dict[tuple[Verb, Resource], list[tuple[bytes, bytes]]] = {}
        everywhere: dict[tuple[Verb, Resource], bool] = {}
        self.may_write = False  # something, somewhere: such a principal may open sessions
        for verb, resource, start, end in grants:
            if resource in RANGED:
                by_kind.setdefault((verb, resource), []).append((start, end))
            else:
                everywhere[verb, resource] = True
            if verb == Verb.OPERATE:
                everywhere[Verb.WATCH, resource] = True
            self.may_write = self.may_write or verb in _WRITING
        self.is_admin = (Verb.ACCESS, Resource.CLUSTER) in everywhere  # such a principal has no share: it could end any
        self._everywhere = everywhere
        self._ranges = {kind: merged(ranges) for kind, ranges in by_kind.items()}

    def allows(self, grant: Grant) -> bool:
        """Whether all of what the grant names is allowed."""
        verb, resource, start, end = grant
        if resource in RANGED:
            return self._ranges.get((verb, resource), _NONE).holds(start, end)
        return (verb, resource) in self._everywhere

    def allows_key(self, verb: Verb, resource: Resource, key: bytes) -> bool:
        """The same of one key, or one consumer group."""
        return self._ranges.get((verb, resource), _NONE).holds_key(key)


def merged(ranges: Iterable[tuple[bytes, bytes]]) -> Ranges:
    """Their union."""
    starts: list[bytes] = []
    ends: list[bytes] = []
    for start, end in sorted(ranges):
        if ends and (not ends[-1] or start <= ends[-1]):
            if ends[-1] and (not end or end > ends[-1]):
                ends[-1] = end
        else:
            starts.append(start)
            ends.append(end)
    return Ranges(starts, ends)
