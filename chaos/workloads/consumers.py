"""Reads the whole log during a run, as several readers: each must receive every record once and in order.

A steady reader reads through a client that fails over by itself. A hopping reader reads at one node for a while, or
until that breaks off, then at another, and gives each node only the next index. A jumping reader begins anywhere in the
log, at any node, and reads a stretch.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from raftlog import Client, ClientError, Compacted, Record
from raftlog.chaos.judge.history import History
from raftlog.chaos.judge.log_truth import LogTruth
from raftlog.chaos.workloads.workload import AFTER_FAILURE_S, DIRECT, Arena

CHUNK_RECORDS: Final = 200
CHUNK_S: Final = 0.5

STAY_S: Final = (0.2, 3.0)
"""How long a hopping reader stays at a node: below and above what faults last."""

JUMP_RECORDS: Final = 200
JUMP_EVERY_S: Final = 0.5


@dataclass(slots=True)
class Route:
    """Where a reader reads: with `stay_s` at one of its clients for so long, then at another; else at the only one."""

    clients: Sequence[Client]
    chance: random.Random
    stay_s: tuple[float, float] | None = None
    _last: Client | None = None

    async def forever(self, follow: Callable[[Client], Awaitable[None]]) -> None:
        """Follows here and there, until the task is cancelled."""
        while True:
            others = [each for each in self.clients if each is not self._last] or self.clients
            self._last = self.chance.choice(others)
            try:
                async with asyncio.timeout(None if self.stay_s is None else self.chance.uniform(*self.stay_s)):
                    await follow(self._last)
            except TimeoutError:
                pass
            except ClientError:
                await asyncio.sleep(AFTER_FAILURE_S)


def steady(arena: Arena, name: str) -> Route:
    """One client that fails over."""
    return Route([arena.client(0)[0]], arena.chance(name))


def hopping(arena: Arena, name: str) -> Route:
    """A client of each node."""
    return Route([arena.client(2 * number + 1)[0] for number in range(len(arena.urls))], arena.chance(name), STAY_S)


@dataclass(slots=True)
class Follower:
    """A reader of the log from its first index on, which goes on behind what a node answered is trimmed."""

    name: str
    route: Route
    position: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)  # from, to (not in it): answered to be trimmed

    def skip(self, error: Compacted) -> None:
        """Goes on at the oldest index."""
        if error.problem is not None and (oldest := error.problem.oldest or 0) > self.position + 1:
            self.gaps.append((self.position + 1, oldest))
            self.position = oldest - 1

    def is_trimmed(self, index: int) -> bool:
        """Whether it was answered that this index is."""
        return any(start <= index < end for start, end in self.gaps)

    def unfounded(self, log: LogTruth) -> str:
        """The fault of an answer that records are trimmed while the log was not trimmed so far; else empty."""
        before = log.trimmed_before
        for start, end in self.gaps:
            if end > before:
                return f"{self.name} was answered {start} to {end - 1} are trimmed; the log was trimmed up to {before}"
        return ""


@dataclass(slots=True)
class Consumer(Follower):
    """A reader of all records, with its own list of those that it received."""

    rows: list[tuple[int, str]] = field(default_factory=list)

    async def run(self, history: History, arena: Arena) -> None:
        """Until the task is cancelled."""
        await self.route.forever(lambda client: self._follow(client, history, arena))

    async def _follow(self, client: Client, history: History, arena: Arena) -> None:
        rows: list[list[Any]] = []
        since_ns = arena.now_ns()
        history.invoke(self.name, "read", time_ns=since_ns)
        try:
            async for each in client.log(self.position + 1, follow=True, progress=True):
                if isinstance(each, Record):
                    self.position = each.index
                    if (text := appended_text(each)) is not None:
                        self.rows.append((each.index, text))
                        rows += _own(each.index, text)
                now_ns = arena.now_ns()
                if rows and (len(rows) >= CHUNK_RECORDS or now_ns - since_ns > CHUNK_S * 1e9):
                    history.complete(self.name, "ok", rows, time_ns=now_ns)
                    rows, since_ns = [], now_ns
                    history.invoke(self.name, "read", time_ns=now_ns)
        except Compacted as error:
            self.skip(error)
            raise
        finally:
            history.complete(self.name, "ok", rows, time_ns=arena.now_ns())

    def compared(self, log: LogTruth) -> list[str]:
        """The difference between its records and the log, except for records trimmed before they arrived."""
        if problem := self.unfounded(log):
            return [problem]
        appended = [row for row in log.appended if not self.is_trimmed(row[0])]
        if self.rows == appended:
            return []
        for before, after in pairwise(self.rows):
            if after[0] <= before[0]:
                return [f"{self.name} was given {after} after {before}"]
        had, there = dict(self.rows), dict(appended)
        missing = [row for row in appended if had.get(row[0]) != row[1]]
        extra = [row for row in self.rows if there.get(row[0]) != row[1]]
        summary = f"{self.name} read {len(self.rows)} of {len(appended)} records, up to index {self.position}"
        if extra:
            return [f"{summary}; it was given {extra[0]}, which is not in the log"]
        return [f"{summary}; the first that it was never given is {missing[0]}"]


@dataclass(slots=True)
class Jumper:
    """A reader of stretches from anywhere."""

    name: str
    clients: Sequence[Client]
    chance: random.Random
    stretches: list[tuple[int, int, list[tuple[int, str]]]] = field(default_factory=list)  # from, to (not in it), rows

    async def run(self, history: History, arena: Arena, span: Callable[[], tuple[int, int]]) -> None:
        """Until the task is cancelled; `span`: the oldest index that may be read, as far as known, and one that was
        read already."""
        while True:
            await asyncio.sleep(self.chance.uniform(0, 2 * JUMP_EVERY_S))
            oldest, top = span()
            if not oldest <= top:
                continue
            start = self.chance.randint(oldest, top)
            end = min(start + self.chance.randint(1, JUMP_RECORDS), top + 1)
            history.invoke(self.name, "read", time_ns=arena.now_ns())
            try:
                rows = [
                    (each.index, text)
                    async for each in self.chance.choice(self.clients).log(start, to=end)
                    if isinstance(each, Record) and (text := appended_text(each)) is not None
                ]
            except ClientError:
                history.complete(self.name, "fail", time_ns=arena.now_ns())
                continue
            except asyncio.CancelledError:
                history.complete(self.name, "fail", time_ns=arena.now_ns())
                raise
            history.complete(self.name, "ok", [each for row in rows for each in _own(*row)], time_ns=arena.now_ns())
            self.stretches.append((start, end, rows))

    def compared(self, appended: Sequence[tuple[int, str]]) -> list[str]:
        """Each stretch has every record between its ends, once, in order."""
        for start, end, rows in self.stretches:
            should = [row for row in appended if start <= row[0] < end]
            if rows != should:
                wrong = next((row for row in rows if row not in should), None)
                what = (
                    f"it was given {wrong}" if wrong else f"it was not given {next(r for r in should if r not in rows)}"
                )
                return [f"{self.name} read from {start} to {end}: {what}, of {len(should)} records there"]
        return []


def _own(index: int, text: str) -> list[list[Any]]:
    """The row for the history of this workload; none for a record of another one, which is compared with the log."""
    return [] if text.startswith(DIRECT) else [[index, text]]


def appended_text(record: Record) -> str | None:
    """The record that a client appended, as text; None for all else that lies in the log."""
    if record.operation == "append" and record.result == "applied":
        return (record.value or b"").decode()
    return None
