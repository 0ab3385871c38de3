"""Keeps the newest events of this process in memory, for readers that have no access to the node's log.

An event is a line of the log of level `info` or higher: an election and its reason, damage and repair, a slow or full
disk, a change of members. The log's level does not matter. Lines of requests are no events: they name keys and users.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import MutableMapping
from typing import Any, Final, NamedTuple

from structlog.exceptions import DropEvent

from raftlog.cluster.runtime import clock

EVENTS_MAX: Final = 1_000
"""Events kept; a quiet cluster has a few an hour. About 400 bytes each."""
FIELD_CHARS_MAX: Final = 1_000
"""Longest text of a field that is kept, in characters: some fields have the bytes of a stranger."""
_PLAIN: Final = (bool, int, float, str)
_OF_REQUESTS: Final = frozenset({"audit", "request", "request_failed"})
"""Lines that name the target of a request, and its user. A reader of events need not have the grants to see them."""


class RecentEvent(NamedTuple):
    """One event. `number` counts from 1 since the process began."""

    number: int
    time_ms: int
    level: str
    name: str
    fields: dict[str, Any]  # numbers, truth values, texts


class RecentEvents:
    """The newest events. Threads add, the event loop reads."""

    def __init__(self, events_max: int = EVENTS_MAX) -> None:
        self._events: deque[RecentEvent] = deque(maxlen=events_max)
        self._numbers = itertools.count(1)

    def add(self, level: str, values: MutableMapping[str, Any]) -> None:
        """Keeps an event, by the values of its log line."""
        fields = {name: _plain(value) for name, value in values.items() if name not in ("event", "exc_info")}
        self._events.append(
            RecentEvent(next(self._numbers), clock.wall_ms(), level, str(values.get("event", "")), fields)
        )

    def after(self, number: int, node: int) -> list[RecentEvent]:
        """The kept events behind that number of that node, oldest first. A process may have several nodes (tests)."""
        return [each for each in self._events.copy() if each.number > number and each.fields.get("node", node) == node]


recent: Final = RecentEvents()


class KeepRecent:
    """A processor of structlog that keeps each line, and drops lines below the level of the log."""

    def __init__(self, level: int) -> None:
        self._level = level

    def __call__(self, _: object, method: str, values: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        number = logging.getLevelNamesMapping()[method.upper()]
        if number >= logging.INFO and values.get("event") not in _OF_REQUESTS:
            recent.add(method, values)
        if number < self._level:
            raise DropEvent
        return values


def _plain(value: object) -> bool | int | float | str:
    return value if isinstance(value, _PLAIN) and not isinstance(value, str) else str(value)[:FIELD_CHARS_MAX]
