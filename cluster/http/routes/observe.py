"""Handles `/v1/events`, `/v1/history` and `/v1/log/density`: the past of this node and of its log."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.api.observe import DensityAnswer, EventsAnswer, EventView, HistoryAnswer
from raftlog.cluster.http.exchange.answer import HttpAnswer
from raftlog.cluster.http.exchange.call import READ_PARAMETERS, Call, read_index
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.http.routes.log import SLICE_BYTES
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.history import ROWS
from raftlog.cluster.runtime.recent_events import EVENTS_MAX, recent
from raftlog.statemachine.access import needs

BUCKETS: Final = 200
BUCKETS_MAX: Final = 500
"""Most buckets of one answer: each is one search in the time index of the log."""


async def get_events(service: Service, call: Call) -> HttpAnswer:
    """The newest events of this node behind a number, oldest first."""
    query = call.query({"after", "limit"})
    after, limit = query.number_or("after", 0), query.number_or("limit", EVENTS_MAX, 1, EVENTS_MAX)
    node = service.node
    found = recent.after(after, node.node_id)
    shown = found[:limit] if "after" in query else found[-limit:]
    events = [EventView(*each) for each in shown]
    return service.answer(
        EventsAnswer(node.node_id, events, events[-1].number if events else after, node.applied, node.term)
    )


async def get_history(service: Service, call: Call) -> HttpAnswer:
    """Rates and times of this node: the last ten minutes by second, or the last day by minute."""
    query = call.query({"step", "rows"})
    step = int(query.choice("step", [str(each) for each in ROWS]))
    rows = query.number_or("rows", ROWS[step], 1, ROWS[step])
    node = service.node
    history = node.metrics.history
    end_ms = clock.wall_ms() - int(1_000 * history.age_s(step, clock.monotonic()))
    return service.answer(
        HistoryAnswer(node.node_id, step, end_ms, history.columns(step, rows), node.applied, node.term)
    )


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
