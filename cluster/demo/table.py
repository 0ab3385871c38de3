"""Writes the demo's table beside the import: counters per key, compares that fail, both branches, deletes.

It drives the store from the same lines and keeps a model of what it must hold in the end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from raftlog.cluster.api.kv import TxnIn
from raftlog.cluster.client import requests
from raftlog.cluster.client.aio.client import Client, CompareFailed, SessionBook, Ticket, compare, prefix_end, step
from raftlog.cluster.importer.formats import schema

AT_ONCE: Final = 16
"""Keys written at the same time; the writes of one key follow each other."""

SCRATCH: Final = b"scratch/"
"""Prefix of the keys that the one range delete removes."""


@dataclass(slots=True)
class DemoTable:
    """The operations done so far, and the content that the store must have."""

    open: int = 0  # requests under way now
    done: Counter[str] = field(default_factory=Counter)
    effects: Counter[str] = field(default_factory=Counter)  # what the log must have of it: `put applied`, `else branch`
    expected: dict[bytes, bytes] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)


async def drive(table: DemoTable, endpoints: Sequence[str], keys: Sequence[bytes]) -> None:
    """Carries out one small job per key of `keys`, in order for each key, then the range delete; then compares."""
    async with Client(endpoints, deadline_s=60) as client:
        await client.discover()
        await _repeated(client, table)
        for start in range(0, len(keys), AT_ONCE):
            by_key: dict[bytes, list[int]] = {}
            for number in range(start, min(start + AT_ONCE, len(keys))):
                by_key.setdefault(keys[number], []).append(number)
            await asyncio.gather(*(_jobs(client, table, key, numbers) for key, numbers in by_key.items()))
        table.open += 1
        written = await client.delete_range(SCRATCH, prefix_end(SCRATCH))
        table.open -= 1
        table.done["range delete"] += written.deleted > 0
        table.effects["delete_range applied"] += 1
        for key in [key for key in table.expected if key.startswith(SCRATCH)]:
            del table.expected[key]
        rows = [item async for item in client.range()]
        held = {row.key: row.value for row in rows if not row.key.startswith(schema.PREFIX)}  # the import's own
    wrong = [key for key in held.keys() | table.expected.keys() if held.get(key) != table.expected.get(key)]
    table.differences = [f"{key!r}: {held.get(key)!r}, not {table.expected.get(key)!r}" for key in sorted(wrong)]


async def _repeated(client: Client, table: DemoTable) -> None:
    """The same write sent twice, as after a lost answer: the second gets the first one's answer."""
    table.effects.update(("put applied", "put repeated"))
    book = SessionBook((await client.open_session()).session)
    ticket = Ticket(book, book.take())
    request = requests.put(b"repeated", b"once")
    first = await client.call(request, ticket=ticket)
    second = await client.call(request, ticket=ticket)
    table.expected[b"repeated"] = b"once"
    table.done["repeated"] += second.result == "repeated" and second.index >= first.index


async def _jobs(client: Client, table: DemoTable, key: bytes, numbers: Sequence[int]) -> None:
    for number in numbers:
        table.open += 1
        await _job(client, table, key, number)
        table.open -= 1


async def _job(client: Client, table: DemoTable, key: bytes, number: int) -> None:
    """By the line's number: mostly one more in the key's counter, sometimes something else besides."""
    counter, flag = b"count/" + key, b"flag/" + key
    value = b"%d" % (int(table.expected.get(counter, b"0")) + 1)
    if number % 10 == 3:
        item = await client.get(counter)
        await client.put(counter, value, if_revision=item.mod if item else 0)
        table.done["compare and set"] += 1
        table.effects["put applied"] += 1
        await _must_fail(client, table, counter, item.mod if item else 0)
    else:
        await client.put(counter, value)
        table.done["put"] += 1
        table.effects["put applied"] += 1
    table.expected[counter] = value
    if number % 5 == 1:
        # The condition holds for every other value, so both branches run.
        transaction = TxnIn(
            compare=[compare(flag, "version", "=", 0)],
            then=[step("put", flag, value)],
            orelse=[step("delete", flag), step("put", SCRATCH + key, value)],
        )
        done = await client.txn(transaction)
        branch = "then branch" if done.succeeded else "else branch"
        table.done[branch] += 1
        table.effects.update(("txn applied", branch))
        if done.succeeded:
            table.expected[flag] = value
        else:
            table.expected.pop(flag, None)
            table.expected[SCRATCH + key] = value
    elif number % 20 == 7:
        table.done["delete"] += (await client.delete(flag)).deleted
        table.effects["delete applied"] += 1
        table.expected.pop(flag, None)


async def _must_fail(client: Client, table: DemoTable, key: bytes, revision: int) -> None:
    """The revision was replaced a moment ago."""
    try:
        await client.put(key, b"never", if_revision=revision)
    except CompareFailed:
        table.done["compare failed"] += 1
        table.effects["put compare_failed"] += 1
    else:
        table.differences.append(f"{key!r}: a compare with the old revision {revision} did not fail")
