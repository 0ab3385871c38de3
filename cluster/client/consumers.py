"""Serves consumer groups in both clients: their requests as values, and a handle that keeps the generation.

A handle owns its group from `claim` on, until another owner claims it. Then `commit` raises ConsumerFenced, and the
caller must stop reading. The routes are in docs/http_api.md.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import aclosing
from typing import Final, Protocol, TypeVar, runtime_checkable
from urllib.parse import quote

import msgspec

from raftlog.cluster.api import consumers as api
from raftlog.cluster.api.headers import JSON
from raftlog.cluster.api.values import SHARD
from raftlog.cluster.client import answers, requests
from raftlog.cluster.client.answers import Progress, Record
from raftlog.cluster.client.arguments import checked_methods
from raftlog.cluster.client.flow import ApiRequest
from raftlog.cluster.runtime import clock

T = TypeVar("T")

COMMIT_EVERY_S: Final = 1.0
"""Shortest time between two commits of `records`, in seconds: a commit is a record of the log itself."""

_JSON_BODY: Final = (("Content-Type", JSON),)
_moved = answers.plain(api.ConsumerMoved)
_deleted = answers.plain(api.ConsumerDeleted)
_consumer = answers.plain(api.ConsumerAnswer)
_consumers = answers.plain(api.Consumers)


def position_of(log: str, index: int) -> api.PositionIn:
    """The position before that index."""
    return api.PositionIn(log, {SHARD: index})


def claim(name: str, owner: str = "", position: api.PositionIn | None = None) -> ApiRequest[api.ConsumerMoved]:
    """Makes the caller the owner. `position` is the start of a new group."""
    body = msgspec.json.encode(api.ClaimIn(owner, position))
    return ApiRequest("POST", f"{_path(name)}/claim", _moved, body, _JSON_BODY, writes=True)


def commit(
    name: str, position: api.PositionIn, generation: int | None, *, reset: bool = False, owner: str = ""
) -> ApiRequest[api.ConsumerMoved]:
    """Moves the group. `reset` allows going back, and works without a generation on any owner's group."""
    body = msgspec.json.encode(api.CommitIn(position, generation, reset, owner))
    return ApiRequest("PUT", _path(name), _moved, body, _JSON_BODY, writes=True)


def delete(name: str, generation: int | None = None) -> ApiRequest[api.ConsumerDeleted]:
    """Deletes the group; with a generation only as its owner."""
    query = "" if generation is None else f"?generation={generation}"
    return ApiRequest("DELETE", _path(name) + query, _deleted, writes=True)


def consumer(name: str) -> ApiRequest[api.ConsumerAnswer]:
    """The status of the group."""
    return ApiRequest("GET", _path(name), _consumer)


def consumers() -> ApiRequest[api.Consumers]:
    """The status of all groups."""
    return ApiRequest("GET", "/v1/consumers", _consumers)


def _path(name: str) -> str:
    if not name:
        raise ValueError("a consumer's name has at least one character")
    path = "".join("%2E" for _ in name) if name in (".", "..") else quote(name, safe="")
    return f"/v1/consumers/{path}"


def _owned(owned: api.ConsumerMoved | None, name: str) -> api.ConsumerMoved:
    if owned is None:
        raise ValueError(f"claim consumer group {name!r} before committing: a commit needs the generation of the claim")
    return owned


class _Commits:
    """What of the records given out is to be committed, and when."""

    __slots__ = ("_committed", "_committed_at", "_every_s", "_given", "done")

    def __init__(self, start: int, every_s: float) -> None:
        self._every_s = every_s
        self._committed, self._committed_at = start, clock.monotonic()
        self._given = self.done = start  # `done`: the position after the last finished record

    def give(self, record: Record) -> None:
        """That record is delivered now."""
        self._given = record.index + 1

    def is_due(self) -> bool:
        """The reader finished its record: returns whether a commit of `done` is due."""
        self.done = self._given
        return self.is_open and clock.monotonic() - self._committed_at >= self._every_s

    @property
    def is_open(self) -> bool:
        """Whether records were finished since the last commit."""
        return self.done > self._committed

    def take(self) -> int:
        """`done`, which the caller commits now. A failed commit is not repeated."""
        self._committed, self._committed_at = self.done, clock.monotonic()
        return self.done


@runtime_checkable
class BlockingCaller(Protocol):
    """What a SyncConsumer asks of its client."""

    def call(self, request: ApiRequest[T]) -> T:
        """Carries out a request."""

    def log(self, from_index: int = 1, *, follow: bool = False, internal: bool = False) -> Iterator[Record]:
        """The records of the log from an index on."""


@runtime_checkable
class AsyncCaller(Protocol):
    """What a Consumer asks of its client."""

    async def call(self, request: ApiRequest[T]) -> T:
        """Carries out a request."""

    def log(
        self, from_index: int = 1, *, follow: bool = False, internal: bool = False
    ) -> AsyncGenerator[Record | Progress, None]:
        """The records of the log from an index on."""


@checked_methods
class SyncConsumer:
    """A consumer group in the blocking client: claim it, then read its records and commit positions."""

    def __init__(self, client: BlockingCaller, name: str) -> None:
        self.name = name
        self.owned: api.ConsumerMoved | None = None  # as of the newest claim, commit or reset
        self._client = client

    def claim(self, *, owner: str = "", start: int | None = None) -> api.ConsumerMoved:
        """Makes this handle the owner. A new group begins at index `start` (the oldest if not given)."""
        position = None if start is None else position_of(self._client.call(requests.status()).log, start)
        self.owned = self._client.call(claim(self.name, owner, position))
        return self.owned

    def status(self) -> api.ConsumerAnswer:
        """Position, owner, lag. Raises ConsumerNotFound."""
        return self._client.call(consumer(self.name))

    def commit(self, next_index: int, *, reset: bool = False) -> api.ConsumerMoved:
        """Marks everything before `next_index` as done. `reset` also moves back. Raises ConsumerFenced."""
        owned = _owned(self.owned, self.name)
        position = position_of(owned.position.log, next_index)
        self.owned = self._client.call(commit(self.name, position, owned.generation, reset=reset))
        return self.owned

    def records(
        self,
        *,
        follow: bool = False,
        limit: int | None = None,
        internal: bool = False,
        every_s: float = COMMIT_EVERY_S,
    ) -> Generator[Record, None, None]:
        """The records from the group's position on, each at least once. Asking for the next record marks the previous
        one as done. The position after the last done record is committed every `every_s` seconds and at the end."""
        progress = _Commits(_owned(self.owned, self.name).position.next[SHARD], every_s)
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

    def delete(self) -> api.ConsumerDeleted:
        """Deletes the group, if this handle still owns it."""
        return self._client.call(delete(self.name, _owned(self.owned, self.name).generation))


@checked_methods
class Consumer:
    """A consumer group in the asyncio client: claim it, then read its records and commit positions."""

    def __init__(self, client: AsyncCaller, name: str) -> None:
        self.name = name
        self.owned: api.ConsumerMoved | None = None
        self._client = client

    async def claim(self, *, owner: str = "", start: int | None = None) -> api.ConsumerMoved:
        """Makes this handle the owner. A new group begins at index `start` (the oldest if not given)."""
        position = None if start is None else position_of((await self._client.call(requests.status())).log, start)
        self.owned = await self._client.call(claim(self.name, owner, position))
        return self.owned

    async def status(self) -> api.ConsumerAnswer:
        """Position, owner, lag. Raises ConsumerNotFound."""
        return await self._client.call(consumer(self.name))

    async def commit(self, next_index: int, *, reset: bool = False) -> api.ConsumerMoved:
        """Marks everything before `next_index` as done. `reset` also moves back. Raises ConsumerFenced."""
        owned = _owned(self.owned, self.name)
        position = position_of(owned.position.log, next_index)
        self.owned = await self._client.call(commit(self.name, position, owned.generation, reset=reset))
        return self.owned

    async def records(
        self,
        *,
        follow: bool = False,
        limit: int | None = None,
        internal: bool = False,
        every_s: float = COMMIT_EVERY_S,
    ) -> AsyncGenerator[Record, None]:
        """The records from the group's position on, each at least once. Asking for the next record marks the previous
        one as done. The position after the last done record is committed every `every_s` seconds and at the end.

        Close the iterator (`contextlib.aclosing`) if you leave it early.
        """
        progress = _Commits(_owned(self.owned, self.name).position.next[SHARD], every_s)
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

    async def delete(self) -> api.ConsumerDeleted:
        """Deletes the group, if this handle still owns it."""
        return await self._client.call(delete(self.name, _owned(self.owned, self.name).generation))
