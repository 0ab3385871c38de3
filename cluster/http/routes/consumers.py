"""Handles `/v1/consumers`: groups, their positions, and the generations that fence old owners."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from raftlog.cluster.api.consumers import (
    ClaimIn,
    CommitIn,
    ConsumerAnswer,
    ConsumerDeleted,
    ConsumerMoved,
    Consumers,
    PositionIn,
)
from raftlog.cluster.api.errors import ApiError, Code, Outcome
from raftlog.cluster.api.values import NUMBER_MAX, SHARD
from raftlog.cluster.http.exchange.answer import HttpAnswer
from raftlog.cluster.http.exchange.body import decode, read_body
from raftlog.cluster.http.exchange.call import READ_PARAMETERS, Call, read_index
from raftlog.cluster.http.exchange.consumer_lag import position_of
from raftlog.cluster.http.exchange.outcomes import commit, first_answer, refuse
from raftlog.cluster.http.exchange.query import unescape
from raftlog.cluster.http.exchange.service import Service
from raftlog.raft.codec.block import BlockRecord
from raftlog.statemachine import answers
from raftlog.statemachine.access import needs
from raftlog.statemachine.access.grants import Verb
from raftlog.statemachine.commands import ConsumerGroup, Operation, Result
from raftlog.statemachine.consumers import ConsumerAction, ConsumerCommand, encode_consumer

_CLAIM: Final = msgspec.json.Decoder(ClaimIn)
_COMMIT: Final = msgspec.json.Decoder(CommitIn)


async def get_consumers(service: Service, call: Call) -> HttpAnswer:
    """All consumer groups by name: position, generation, owner, lag."""
    query = call.query(READ_PARAMETERS)
    await read_index(service, call, query)
    node = service.node
    index, term, last = node.applied, node.term, node.last_user_index
    groups = await service.lags.statuses(readable_groups(service, call))
    return service.answer(Consumers(node.log_id, groups, last, index, term), index, term)


async def get_consumer(service: Service, call: Call) -> HttpAnswer:
    """A consumer group: position, generation, owner, and its lag in records and seconds."""
    query = call.query(READ_PARAMETERS)
    name = _name(service, call)
    await read_index(service, call, query)
    node = service.node
    index, term = node.applied, node.term
    permissions = service.access.permissions(call)
    if permissions is not None and not needs.sees_group(permissions, name):
        service.access.check(call, needs.group_grant(Verb.READ, name))
    group = node.machine.consumers.get(name)
    if group is None:
        raise ApiError(
            Code.CONSUMER_NOT_FOUND,
            f"there is no consumer group {name.decode()!r}: claim it to make it",
            index=index,
            term=term,
        )
    status = await service.lags.status(name, group)
    return service.answer(ConsumerAnswer(**msgspec.structs.asdict(status), index=index, term=term), index, term)


async def claim(service: Service, call: Call) -> HttpAnswer:
    """Makes the caller the owner, with a new generation, which fences the one before. Makes a missing group."""
    call.query()
    name = _name(service, call)
    body = await read_body(service, call)
    asked = decode(_CLAIM, body, "the body as JSON") if body else ClaimIn()
    position = 0 if asked.position is None else _next(service, asked.position)
    command = ConsumerCommand(ConsumerAction.CLAIM, 0, position, _owner(service, asked.owner))
    return await _moved(service, call, name, command)


async def put_consumer(service: Service, call: Call) -> HttpAnswer:
    """Commits a position as the owner; with `reset` also a lower one, without a generation as a new owner."""
    call.query()
    name = _name(service, call)
    asked = decode(_COMMIT, await read_body(service, call), "the body as JSON")
    if asked.generation == 0 or (asked.generation is None and not asked.reset):
        raise ApiError(
            Code.BAD_REQUEST,
            "a commit needs the generation from the claim's answer. To move the group regardless "
            "of its owner, send reset: true",
        )
    if asked.owner and asked.generation is not None:
        raise ApiError(Code.BAD_REQUEST, "owner is only for a reset without generation: the claim already set it")
    action = ConsumerAction.RESET if asked.reset else ConsumerAction.COMMIT
    command = ConsumerCommand(
        action, asked.generation or 0, _next(service, asked.position), _owner(service, asked.owner)
    )
    return await _moved(service, call, name, command)


async def delete_consumer(service: Service, call: Call) -> HttpAnswer:
    """Deletes a consumer group; with `generation` only as its owner. If it does not exist: `deleted` 0."""
    query = call.query(frozenset({"generation"}))
    name = _name(service, call)
    command = ConsumerCommand(ConsumerAction.DELETE, query.number("generation", 1) or 0)
    answer, result, term = await _commit(service, call, name, command)
    body = ConsumerDeleted(Outcome.APPLIED, result, name.decode(), answer.deleted, answer.last, term)
    return service.answer(body, answer.last, term)


async def _moved(service: Service, call: Call, name: bytes, command: ConsumerCommand) -> HttpAnswer:
    answer, result, term = await _commit(service, call, name, command)
    group = answer.consumer
    assert group is not None, "an applied command leaves a group"
    body = ConsumerMoved(
        Outcome.APPLIED,
        result,
        name.decode(),
        position_of(service.node.log_id, group.next),
        group.generation,
        group.owner.decode("utf-8", "replace"),
        answer.last,
        term,
    )
    return service.answer(body, answer.last, term)


async def _commit(
    service: Service, call: Call, name: bytes, command: ConsumerCommand
) -> tuple[answers.Answer, str, int]:
    """The state machine's answer, `applied` or `repeated`, and the term. Raises ApiError for other outcomes."""
    session = call.session()
    record = BlockRecord(int(Operation.CONSUMER), name, encode_consumer(command))
    settled = await commit(service, call, (record,), session)
    answer = first_answer(settled, session)
    group = answer.consumer
    if answer.result is Result.APPLIED:
        return answer, "repeated" if settled.effect.result is Result.REPEATED else "applied", settled.term
    where = {}
    if group is not None:
        where = {"generation": group.generation, "position": position_of(service.node.log_id, group.next)}
    if answer.result is Result.COMPARE_FAILED and group is not None:
        owner = f" ({group.owner.decode('utf-8', 'replace')})" if group.owner else ""
        raise ApiError(
            Code.CONSUMER_FENCED,
            f"consumer group {name.decode()!r} has generation {group.generation}{owner}, not {command.generation}: "
            "somebody claimed it since; claim it to take it back",
            index=answer.last,
            term=settled.term,
            **where,
        )
    refuse(service, answer, settled.term, session, **where)


def readable_groups(service: Service, call: Call) -> Iterable[tuple[bytes, ConsumerGroup]]:
    """The consumer groups that the sender may see."""
    rows = service.node.machine.consumers.rows()
    permissions = service.access.permissions(call)
    if permissions is None:
        return rows
    return [row for row in rows if needs.sees_group(permissions, row[0])]


def _name(service: Service, call: Call) -> bytes:
    name = unescape(call.parts[0], "the consumer's name in the path")
    _check_size(service, "the consumer's name", name, "consumer_name_bytes_max")
    try:
        text = name.decode()
    except UnicodeDecodeError:
        text = ""
    if not text or not text.isprintable():
        raise ApiError(Code.BAD_REQUEST, "a consumer's name is text of at least one character, all of them printable")
    return name


def _owner(service: Service, owner: str) -> bytes:
    if not owner.isprintable():
        raise ApiError(Code.BAD_REQUEST, "the owner is text, all of its characters printable")
    data = owner.encode()
    _check_size(service, "the owner", data, "consumer_owner_bytes_max")
    return data


def _check_size(service: Service, what: str, data: bytes, name: str) -> None:
    """Raises ApiError for more bytes than the state machine's limit of that name."""
    limit: int = getattr(service.node.machine.limits, name)
    if len(data) > limit:
        raise ApiError(Code.TOO_LARGE, f"{what} has {len(data)} bytes: the limit is {limit} ({name})")


def _next(service: Service, position: PositionIn) -> int:
    """The index of a position of this log. Raises ApiError foreign_log or bad_request."""
    if position.log != service.node.log_id:
        raise ApiError(
            Code.FOREIGN_LOG,
            f"this position belongs to log {position.log[:64]!r}, this is log {service.node.log_id}",
        )
    if position.next.keys() != {SHARD} or not 1 <= position.next[SHARD] <= NUMBER_MAX:
        raise ApiError(
            Code.BAD_REQUEST, f'position.next is {position.next}: it must be {{"{SHARD}": index}}, from index 1 on'
        )
    return position.next[SHARD]
