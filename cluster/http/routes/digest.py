"""Handles `GET /v1/digest`: digests of the state and of a range of the log, to verify exports and compare replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from raftlog.cluster.admission.access import READ_ALL
from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.api.status import DIGEST_FORMAT, DigestAnswer, SetDigestHex
from raftlog.cluster.http.exchange.answer import HttpAnswer
from raftlog.cluster.http.exchange.call import READ_PARAMETERS, Call, read_index, wait_applied
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.http.routes.log import SLICE_BYTES, SLICE_RECORDS, check_oldest
from raftlog.cluster.records.rows import decode_rows
from raftlog.raft.types import Entry
from raftlog.statemachine import digest
from raftlog.statemachine.effects import Effects

_PARAMETERS: Final = READ_PARAMETERS | {"index", "log_from"}


async def get_digest(service: Service, call: Call) -> HttpAnswer:
    """The state's digest at the end of an entry, and with `log_from` that of the log [log_from, index]."""
    query = call.query(_PARAMETERS)
    index, log_from = query.number("index", 1), query.number("log_from", 1)
    node = service.node
    if index is None or index > node.applied or "consistency" in query or "min_index" in query:
        await read_index(service, call, query)
    if index is None:
        index = node.applied
    elif index > node.applied:
        await wait_applied(service, call, index)
    service.access.check(call, *READ_ALL)  # by a digest a reader can check its guess of a value
    revision = node.machine.revision if index == node.applied else None
    state: SetDigestHex | None = None
    try:
        state = _public(_state_digest(service, index))
    except ApiError as error:
        if log_from is None or error.code not in (Code.INSIDE_ENTRY, Code.COMPACTED):
            raise
    if revision is None:
        check_oldest(service, index)
        revision = (await _read(service, index, 1, 1))[0][1].revision
    log_digest: SetDigestHex | None = None
    if log_from is not None:
        if log_from > index:
            raise ApiError(Code.BAD_REQUEST, f"log_from {log_from} is above index {index}: it is [log_from, index]")
        check_oldest(service, log_from)
        log_digest = _public(await _log_digest(service, log_from, index, call.deadline))
    answer = DigestAnswer(
        node.log_id, index, node.term, revision, state, DIGEST_FORMAT, log_from=log_from, log_digest=log_digest
    )
    return service.answer(answer, index)


def _state_digest(service: Service, index: int) -> digest.SetDigest:
    try:
        return service.node.machine.digest_at(index)
    except digest.Inside as error:
        raise ApiError(
            Code.INSIDE_ENTRY,
            f"index {index} lies inside an entry: ask for {error.before} or {error.after}",
            nearest=(error.before, error.after),
        ) from error
    except digest.TooOld as error:
        raise ApiError(Code.COMPACTED, str(error), oldest=error.oldest) from error
    except digest.NotYet as error:
        raise ApiError(Code.FUTURE_INDEX, str(error)) from error


async def _read(service: Service, index: int, limit: int, bytes_max: int) -> list[tuple[Entry, Effects]]:
    """At least one entry. Raises ApiError compacted, also if a snapshot replaces the log meanwhile."""
    pairs = await service.node.read_log(index, limit, bytes_max)
    if not pairs:
        oldest = service.node.oldest
        raise ApiError(Code.COMPACTED, f"index {index} is not kept any more, the oldest is {oldest}", oldest=oldest)
    return pairs


async def _log_digest(service: Service, first: int, last: int, deadline: float) -> digest.SetDigest:
    """The digest of every record of [first, last], computed slice by slice in a worker thread."""
    with service.load.digests:
        total = digest.EMPTY
        position = first
        while position <= last:
            if service.clock() > deadline:
                raise ApiError(
                    Code.DEADLINE,
                    f"the deadline passed at index {position} of [{first}, {last}]: ask for parts of the range, whose "
                    "digests add up",
                )
            pairs = await _read(service, position, SLICE_RECORDS, SLICE_BYTES)
            total = total.merged(await asyncio.to_thread(_digest_of, pairs, position, last))
            position = pairs[-1][0].index + 1
        return total


def _digest_of(pairs: Sequence[tuple[Entry, Effects]], first: int, last: int) -> digest.SetDigest:
    rows = (row for entry, effects in pairs for row in decode_rows(entry, effects, first) if row.index <= last)
    return digest.log_digest(rows)


def _public(value: digest.SetDigest) -> SetDigestHex:
    return SetDigestHex(*value.as_hex())
