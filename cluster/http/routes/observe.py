"""Handles `/v1/overview`, `/v1/events`, `/v1/history` and `/v1/log/density`: this node now, its past, and its log's."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import msgspec

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.api.observe import DensityAnswer, EventsAnswer, EventView, HistoryAnswer, OverviewAnswer
from raftlog.cluster.http.exchange.answer import HttpAnswer, encode_json
from raftlog.cluster.http.exchange.call import READ_PARAMETERS, Call, read_index
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.http.routes.explain import leaderless
from raftlog.cluster.http.routes.log import SLICE_BYTES
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.history import ROWS
from raftlog.cluster.runtime.recent_events import EVENTS_MAX, recent
from raftlog.statemachine.access import needs

BUCKETS: Final = 200
BUCKETS_MAX: Final = 500
"""Most buckets of one answer: each is one search in the time index of the log."""


OVERVIEW_S: Final = 0.5
"""Least age at which an overview is made again, in seconds: 500 consoles that ask once a second cost 2 a second."""
_OVERVIEW_ROWS: Final = 5
_OVERVIEW_EVENTS: Final = 20


async def get_overview(service: Service, call: Call) -> HttpAnswer:
    """The values of a dashboard, made at most twice a second for all clients that ask."""
    call.query()
    node, now, (made_at, body) = service.node, service.clock(), service.overview
    if now >= made_at + OVERVIEW_S:
        events = _events(service, 0)
        answer = OverviewAnswer(
            node.cluster(),
            leaderless(service),
            _history(service, 1, _OVERVIEW_ROWS),
            msgspec.structs.replace(events, events=events.events[-_OVERVIEW_EVENTS:]),
            node.applied,
            node.term,
        )
        body = encode_json(answer)
        service.overview = now, body
    return service.bare(body)


async def get_events(service: Service, call: Call) -> HttpAnswer:
    """The newest events of this node behind a number, oldest first."""
    query = call.query({"after", "limit"})
    after, limit = query.number_or("after", 0), query.number_or("limit", EVENTS_MAX, 1, EVENTS_MAX)
    answer = _events(service, after)
    shown = answer.events[:limit] if "after" in query else answer.events[-limit:]
    return service.answer(msgspec.structs.replace(answer, events=shown, next=shown[-1].number if shown else after))


def _events(service: Service, after: int) -> EventsAnswer:
    node = service.node
    events = [EventView(*each) for each in recent.after(after, node.node_id)]
    return EventsAnswer(node.node_id, events, events[-1].number if events else after, node.applied, node.term)


async def get_history(service: Service, call: Call) -> HttpAnswer:
    """Rates and times of this node: the last ten minutes by second, or the last day by minute."""
    query = call.query({"step", "rows"})
    step = int(query.choice("step", [str(each) for each in ROWS]))
    return service.answer(_history(service, step, query.number_or("rows", ROWS[step], 1, ROWS[step])))


def _history(service: Service, step: int, rows: int) -> HistoryAnswer:
    node = service.node
    history = node.metrics.history
    end_ms = clock.wall_ms() - int(1_000 * history.age_s(step, clock.monotonic()))
    return HistoryAnswer(node.node_id, step, end_ms, history.columns(step, rows), node.applied, node.term)


async def get_density(service: Service, call: Call) -> HttpAnswer:
    """How many indexes were written in each of some equal spans of time."""
    query = call.query(READ_PARAMETERS | {"buckets", "from_time", "to_time"})
    buckets = query.number_or("buckets", BUCKETS, 1, BUCKETS_MAX)
    from_time, to_time = query.number("from_time"), query.number("to_time")
    await read_index(service, call, query)
    service.access.check(call, needs.READ_LOG)
    node = service.node
    first, last = await _time_of(service, node.oldest), await _time_of(service, node.applied)
    begin, end = first if from_time is None else from_time, last + 1 if to_time is None else to_time
    if begin >= end:
        raise ApiError(Code.BAD_REQUEST, f"from_time is {begin}, and to_time is {end}: the log is read between them")
    span = (end - begin) / buckets
    indexes = [await node.find_time(begin + round(at * span)) for at in range(buckets + 1)]
    counts = [following - index for index, following in pairwise(indexes)]
    return service.answer(DensityAnswer(begin, end, span, indexes[:-1], counts, node.oldest, node.applied, node.term))


async def _time_of(service: Service, index: int) -> int:
    """The time of the entry with that index, in Unix ms."""
    pairs = await service.node.read_log(index, 1, SLICE_BYTES)
    return pairs[0][0].time_ms if pairs else service.node.machine.time_ms
