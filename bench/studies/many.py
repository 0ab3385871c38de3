"""Sends 10,000 requests of one Python client at once, beside the Python clients of etcd and Redis: `bench many`.

Each client makes all requests with one `asyncio.gather` over one client object, as a program with a list of writes
does. The clients run in processes of their own, in turns, with their default settings. Every put and append is on disk
before it is answered: on a majority of three nodes (raftlog, etcd), or on one (Redis does not replicate).
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from bench.contenders.field import Field
from bench.instruments import apart, conditions, tools
from bench.studies import study
from raftlog.cluster.client.aio.client import Client

PUTS, GETS, APPENDS = "puts", "gets", "appends"
ROOM_BYTES = 4 << 30
_SECONDS = 300.0  # for all requests of one client


class Burst(msgspec.Struct, frozen=True):
    """All requests of one kind, made at once."""

    kind: str
    seconds: float
    failed: int
    error: str = ""  # of one that failed

    def rate(self, count: int) -> float:
        """Requests a second that succeeded."""
        return (count - self.failed) / self.seconds


class Entry(msgspec.Struct, frozen=True):
    """One client's rounds."""

    name: str
    rounds: list[list[Burst]]

    def rate(self, kind: str, count: int) -> float:
        """The median rate of a kind over the rounds; 0: the client has no such request."""
        found = [burst.rate(count) for bursts in self.rounds for burst in bursts if burst.kind == kind]
        return statistics.median(found) if found else 0.0


class Result(msgspec.Struct, frozen=True):
    """The whole run; the first entry is raftlog's."""

    when: str
    conditions: conditions.Conditions
    count: int
    value_bytes: int
    entries: list[Entry]
    skipped: dict[str, str]

    @property
    def faults(self) -> list[str]:
        """Requests of raftlog's client that failed."""
        return [
            f"{burst.failed} of {self.count} {burst.kind} failed, one with: {burst.error}"
            for bursts in self.entries[0].rounds
            for burst in bursts
            if burst.failed
        ]


async def burst(kind: str, make: Callable[[int], Awaitable[Any]], count: int) -> Burst:
    """So many requests at once, and how long it takes until the last one is answered."""
    began = time.perf_counter()
    answers = await asyncio.gather(*(make(number) for number in range(count)), return_exceptions=True)
    seconds = time.perf_counter() - began
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    return Burst(kind, seconds, len(errors), repr(errors[0])[:300] if errors else "")


async def _raftlog(url: str, count: int, value: bytes) -> list[Burst]:
    async with Client(url) as client:
        await client.put(b"warm", value)
        return [
            await burst(PUTS, lambda number: client.put(b"%d" % number, value), count),
            await burst(GETS, lambda number: client.get(b"%d" % number), count),
            await burst(APPENDS, lambda number: client.append(value), count),
        ]


async def _etcd(url: str, count: int, value: bytes) -> list[Burst]:
    import aetcd

    host, _, port = url.partition("://")[2].partition(":")
    async with aetcd.Client(host=host, port=int(port)) as client:
        await client.put(b"warm", value)
        return [
            await burst(PUTS, lambda number: client.put(b"%d" % number, value), count),
            await burst(GETS, lambda number: client.get(b"%d" % number), count),
        ]


async def _redis(url: str, count: int, value: bytes) -> list[Burst]:
    from redis.asyncio import BlockingConnectionPool, Redis as RedisClient

    # Its default pool opens a connection for each request; this one has as many as raftlog's client, and waits.
    pool = BlockingConnectionPool.from_url(url, max_connections=256, timeout=_SECONDS)
    async with RedisClient(connection_pool=pool) as client:
        await client.set("warm", value)
        return [
            await burst(PUTS, lambda number: client.set(b"%d" % number, value), count),
            await burst(GETS, lambda number: client.get(b"%d" % number), count),
            await burst(APPENDS, lambda number: client.xadd("log", {"value": value}), count),
        ]


_CLIENTS = {"raftlog": _raftlog, "etcd": _etcd, "redis": _redis}


def _run(kind: str, url: str, count: int, value_bytes: int) -> list[Burst]:
    packages = None if kind == "raftlog" else tools.python_packages("aetcd" if kind == "etcd" else "redis")
    words = (kind, url, count, value_bytes)
    return apart.run("bench.studies.many", list[Burst], words=words, seconds=_SECONDS, packages=packages)


def measure(folder: Path, count: int, value_bytes: int, rounds: int, peers: bool, console: Console) -> Result:
    """The run. Raises RuntimeError."""
    seen = conditions.look(folder, console, ROOM_BYTES)
    skipped: dict[str, str] = {}
    with Field(folder, console, skipped, peers=peers) as field:
        ours = field.raftlog()
        entrants = [("raftlog", ours.name, ours.cluster.url(ours.cluster.leader()))]
        entrants += [("etcd", each.name, each.url) for each in field.etcds()]
        entrants += [("redis", each.name, each.url) for each in field.redis()]
        found: dict[str, list[list[Burst]]] = {name: [] for _, name, _ in entrants}
        for number in range(rounds):
            for kind, name, url in entrants:
                if name in skipped:
                    continue
                try:
                    found[name].append(_run(kind, url, count, value_bytes))
                except (tools.MissingTool, RuntimeError) as error:
                    if kind == "raftlog":
                        raise
                    skipped[name] = " ".join(str(error).split())[-400:]
                    continue
                told = ", ".join(f"{each.kind} {each.rate(count):,.0f}/s" for each in found[name][-1])
                console.print(f"  round {number + 1}: {name}: {told}", markup=False)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    entries = [Entry(name, bursts) for name, bursts in found.items() if bursts]
    return Result(when, seen, count, value_bytes, entries, skipped)


def tell(result: Result) -> Iterator[str]:
    """The result as lines of text."""
    ours = result.entries[0]
    yield f"{result.count:,} requests at once, values of {result.value_bytes} bytes, medians of the rounds:"
    for kind in (PUTS, GETS, APPENDS):
        own = ours.rate(kind, result.count)
        beside = [
            f"{own / rate:.2f}x {entry.name} ({rate:,.0f}/s)"
            for entry in result.entries[1:]
            if (rate := entry.rate(kind, result.count))
        ]
        yield f"  {kind}: {own:,.0f}/s" + (f": {', '.join(beside)}" if beside else "")
    for entry in result.entries[1:]:
        for bursts in entry.rounds:
            yield from (
                f"  {entry.name}: {each.failed} {each.kind} failed: {each.error}" for each in bursts if each.failed
            )
    yield from (f"  skipped {name}: {reason}" for name, reason in result.skipped.items())


def main(
    count: Annotated[int, typer.Option(min=1, help="requests at once")] = 10_000,
    size: Annotated[int, typer.Option(min=1, help="bytes of each value")] = 256,
    rounds: Annotated[int, typer.Option(min=1, help="how often each client runs")] = 3,
    peers: Annotated[bool, typer.Option(help="measure etcd and Redis as well")] = True,
    data: Annotated[Path | None, typer.Option(help="folder on a real disk for the data")] = None,
    save: Annotated[Path, typer.Option(help="where the result goes")] = Path("bench/results/many.json"),
) -> None:
    """10,000 concurrent puts, gets and appends of one Python client, beside Python clients of etcd and Redis."""
    study.run(
        "many",
        data,
        save,
        lambda folder, console: measure(folder, count, size, rounds, peers, console),
        tell,
    )


if __name__ == "__main__":
    _, _kind, _url, _count, _bytes = sys.argv
    apart.tell(asyncio.run(_CLIENTS[_kind](_url, int(_count), b"x" * int(_bytes))))
