"""Defines the answers about what happened on a node and in its log over time: events, and the density of the log."""

from __future__ import annotations

from typing import Any

import msgspec

from raftlog.cluster.api.explain import Leaderless
from raftlog.cluster.api.members import ClusterView


class EventView(msgspec.Struct, frozen=True):
    """One event of a node, as its log has it."""

    number: int  # counts from 1 since the process began
    time_ms: int
    level: str  # info | warning | error
    event: str
    fields: dict[str, Any]


class EventsAnswer(msgspec.Struct, frozen=True):
    """`GET /v1/events`: the newest events of this node, oldest first. Read on with `after=next`."""

    node: int
    events: list[EventView]
    next: int
    index: int
    term: int


class HistoryAnswer(msgspec.Struct, frozen=True):
    """`GET /v1/history`: one node's rates and times. All columns have one value a row, oldest first; null: not known.

    The newest row ends at `end_ms`, each is `step_s` long.
    """

    node: int
    step_s: int  # 1 | 60
    end_ms: int  # Unix ms
    columns: dict[str, list[float | None]]
    index: int
    term: int


class OverviewAnswer(msgspec.Struct, frozen=True):
    """`GET /v1/overview`: what a dashboard shows of a node, as four other routes answer it."""

    cluster: ClusterView
    leaderless: Leaderless
    history: HistoryAnswer  # the newest rows by second
    events: EventsAnswer  # the newest ones
    index: int
    term: int


class DensityAnswer(msgspec.Struct, frozen=True):
    """`GET /v1/log/density`: how many indexes of the log fall into equal spans of time.

    Bucket i has `counts[i]` indexes, from `indexes[i]` on; it begins at `from_time` + i × `span_ms`.
    """

    from_time: int
    to_time: int
    span_ms: float
    indexes: list[int]
    counts: list[int]
    oldest: int
    index: int
    term: int
