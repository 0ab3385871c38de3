"""Consumer groups for both clients: their requests as values, and a handle that remembers what its claim was told.

A handle owns its group from `claim` on, until somebody else claims it: then `commit` raises ConsumerFenced, and whoever
gets that stops reading. Routes are those of docs/http_api.md.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

from cluster import client_answers as answers
from cluster import clock, wire
from cluster import wire_consumers as told
from cluster.client_answers import Record
from cluster.client_flow import Request

if TYPE_CHECKING:
    from cluster.client import Client
    from cluster.client_sync import SyncClient

COMMIT_EVERY_S: Final = 1.0
"""How often `records` commits at most: a commit is a record of the log itself."""

_JSON_BODY: Final = (("Content-Type", wire.JSON),)
_moved = answers.plain(told.ConsumerMoved)
_deleted = answers.plain(told.ConsumerDeleted)
_consumer = answers.plain(told.ConsumerAnswer)
_consumers = answers.plain(told.Consumers)


def position_of(log: str, index: int) -> told.PositionIn:
    """The position before that index."""
    return told.PositionIn(log, {wire.SHARD: index})


def claim(name: str, owner: str = "", position: told.PositionIn | None = None) -> Request[told.ConsumerMoved]:
    """Makes the caller the owner; `position` is where a new group begins."""
    body = msgspec.json.encode(told.ClaimIn(owner, position))
    return Request("POST", f"{_path(name)}/claim", _moved, body, _JSON_BODY, writes=True)


def commit(
    name: str, position: told.PositionIn, generation: int | None, *, reset: bool = False, owner: str = ""
) -> Request[told.ConsumerMoved]:
    """Moves the group; `reset` also back, and without a generation whoever owns it."""
    body = msgspec.json.encode(told.CommitIn(position, generation, reset, owner))
    return Request("PUT", _path(name), _moved, body, _JSON_BODY, writes=True)


def delete(name: str, generation: int | None = None) -> Request[told.ConsumerDeleted]:
    """Deletes the group, with a generation only as its owner."""
    query = "" if generation is None else f"?generation={generation}"
    return Request("DELETE", _path(name) + query, _deleted, writes=True)


def consumer(name: str) -> Request[told.ConsumerAnswer]:
    """Where the group stands."""
    return Request("GET", _path(name), _consumer)


def consumers() -> Request[told.Consumers]:
    """Where all groups stand."""
    return Request("GET", "/v1/consumers", _consumers)


def _path(name: str) -> str:
    if not name:
        raise ValueError("a consumer's name has at least one character")
    path = "".join("%2E" for _ in name) if name in (".", "..") else quote(name, safe="")
    return f"/v1/consumers/{path}"


def _owned(owned: told.ConsumerMoved | None, name: str) -> told.ConsumerMoved:
    if owned is None:
        raise ValueError(f"claim consumer group {name!r} before committing: its generation says who may")
    return owned


class _Progress:
    """What of the records given out is to be committed, and when."""

    __slots__ = ("_committed", "_committed_at", "_every_s", "_given", "done")

    def __init__(self, start: int, every_s: float) -> None:
        self._every_s = every_s
        self._committed, self._committed_at = start, clock.monotonic()
        self._given = self.done = start  # `done`: the position after the last record that its reader came back from

    def give(self, record: Record) -> None:
        """That one is given out now."""
        self._given = record.index + 1

    def is_due(self) -> bool:
        """The reader came back: whether a commit of `done` is due."""
        self.done = self._given
        return self.is_open and clock.monotonic() - self._committed_at >= self._every_s

    @property
    def is_open(self) -> bool:
        """Whether `done` is beyond what was taken for a commit."""
        return self.done > self._committed

    def take(self) -> int:
        """`done`, which is committed now; should that fail, it is not tried again."""
        self._committed, self._committed_at = self.done, clock.monotonic()
        return self.done


class SyncConsumer:
    """A consumer group as the blocking client sees it."""

    def __init__(self, client: SyncClient, name: str) -> None:
        self.name = name
        self.owned: told.ConsumerMoved | None = None  # as of the newest claim, commit or reset
        self._client = client

    def claim(self, *, owner: str = "", start: int | None = None) -> told.ConsumerMoved:
        """Takes the group over; a new one begins at index `start` (the oldest if not given)."""
        position = None if start is None else position_of(self._client.status().log, start)
        self.owned = self._client.call(claim(self.name, owner, position))
        return self.owned

    def status(self) -> told.ConsumerAnswer:
        """Position, owner, lag. Raises ConsumerNotFound."""
        return self._client.call(consumer(self.name))

    def commit(self, next_index: int, *, reset: bool = False) -> told.ConsumerMoved:
        """Everything before `next_index` is done with; `reset` goes back, too. Raises ConsumerFenced."""
        owned = _owned(self.owned, self.name)
        position = position_of(owned.position.log, next_index)
        self.owned = self._client.call(commit(self.name, position, owned.generation, reset=reset))
        return self.owned

    def records(
        self, *, follow: bool = False, limit: int | None = None, internal: bool = False,
        every_s: float = COMMIT_EVERY_S,
    ) -> Generator[Record, None, None]:  # fmt: skip
        """The records from the group's position on. A record counts as done when the next one is asked for; what is
        done is committed every `every_s` seconds and at the end: at least once each."""
        progress = _Progress(_owned(self.owned, self.name).position.next[wire.SHARD], every_s)
        try:
            for record in self._client.log(progress.done, follow=follow, internal=internal):
                progress.give(record)
                yield record
                if progress.is_due():
                    self.commit(progress.take())
                limit = None if limit is None else limit - 1
                if limit == 0:
                    break
        finally:
            if progress.is_open:
                self.commit(progress.take())

    def delete(self) -> told.ConsumerDeleted:
        """Ends the group, if this handle owns it still."""
        return self._client.call(delete(self.name, _owned(self.owned, self.name).generation))


class Consumer:
    """A consumer group as the asyncio client sees it: as SyncConsumer."""

    def __init__(self, client: Client, name: str) -> None:
        self.name = name
        self.owned: told.ConsumerMoved | None = None
        self._client = client

    async def claim(self, *, owner: str = "", start: int | None = None) -> told.ConsumerMoved:
        """As SyncConsumer.claim."""
        position = None if start is None else position_of((await self._client.status()).log, start)
        self.owned = await self._client.call(claim(self.name, owner, position))
        return self.owned

    async def status(self) -> told.ConsumerAnswer:
        """As SyncConsumer.status."""
        return await self._client.call(consumer(self.name))

    async def commit(self, next_index: int, *, reset: bool = False) -> told.ConsumerMoved:
        """As SyncConsumer.commit."""
        owned = _owned(self.owned, self.name)
        position = position_of(owned.position.log, next_index)
        self.owned = await self._client.call(commit(self.name, position, owned.generation, reset=reset))
        return self.owned

    async def records(
        self, *, follow: bool = False, limit: int | None = None, internal: bool = False,
        every_s: float = COMMIT_EVERY_S,
    ) -> AsyncGenerator[Record, None]:  # fmt: skip
        """As SyncConsumer.records; close the iterator (`contextlib.aclosing`) if you leave it early."""
        progress = _Progress(_owned(self.owned, self.name).position.next[wire.SHARD], every_s)
        try:
            async with aclosing(self._client.log(progress.done, follow=follow, internal=internal)) as found:
                async for record in found:
                    if not isinstance(record, Record):
                        continue
                    progress.give(record)
                    yield record
                    if progress.is_due():
                        await self.commit(progress.take())
                    limit = None if limit is None else limit - 1
                    if limit == 0:
                        break
        finally:
            if progress.is_open:
                await self.commit(progress.take())

    async def delete(self) -> told.ConsumerDeleted:
        """As SyncConsumer.delete."""
        return await self._client.call(delete(self.name, _owned(self.owned, self.name).generation))
