"""Writes the demo's table beside the import: puts, compares that fail, both branches of transactions, deletes.

The same lines drive it. `raftlog.cluster.demo.story` looks for the effect of each write in the log.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from raftlog.cluster.api.kv import TxnIn
from raftlog.cluster.client.aio.client import Client
from raftlog.cluster.client.decisions import SessionBook
from raftlog.cluster.client.errors import CompareFailed
from raftlog.cluster.client.flow import Ticket
from raftlog.cluster.client.requests import compare, prefix_end, put, step

AT_ONCE: Final = 16
"""Keys written at the same time; the writes of one key follow each other."""

SCRATCH: Final = b"scratch/"
"""Prefix of the keys that the one range delete removes."""

EFFECTS: Final = {
    "put": ("put applied",),
    "compare and set": ("put applied",),
    "compare failed": ("put compare_failed",),
    "repeated": ("put applied", "put repeated"),
    "then branch": ("txn applied", "then branch"),
    "else branch": ("txn applied", "else branch"),
    "delete": ("delete applied",),
    "range delete": ("delete_range applied",),
}
"""What the log has of each write."""


@dataclass(slots=True)
class DemoTable:
    """The writes so far."""

    open: int = 0  # requests under way now
    done: Counter[str] = field(default_factory=Counter)

    def effects(self) -> Counter[str]:
        """What the log must have of them."""
        return Counter(effect for write, count in self.done.items() for effect in EFFECTS[write] * count)


async def drive(table: DemoTable, endpoints: Sequence[str], keys: Sequence[bytes]) -> None:
    """Carries out one small job per key of `keys`, in order for each key, then the range delete."""
    async with Client(endpoints, deadline_s=60) as client:
        await client.discover()
        await _repeated(client, table)
        for start in range(0, len(keys), AT_ONCE):
            by_key: dict[bytes, list[int]] = {}
            for number in range(start, min(start + AT_ONCE, len(keys))):
                by_key.setdefault(keys[number], []).append(number)
            await asyncio.gather(*(_jobs(client, table, key, numbers) for key, numbers in by_key.items()))
        await client.delete_range(SCRATCH, prefix_end(SCRATCH))
        table.done["range delete"] += 1


async def _repeated(client: Client, table: DemoTable) -> None:
    """The same write sent twice, as after a lost answer: the second gets the first one's answer."""
    book = SessionBook((await client.open_session()).session)
    ticket = Ticket(book, book.take())
    for _ in range(2):
        await client.call(put(b"repeated", b"once"), ticket=ticket)
    table.done["repeated"] += 1


async def _jobs(client: Client, table: DemoTable, key: bytes, numbers: Sequence[int]) -> None:
    for number in numbers:
        table.open += 1
        await _job(client, table, key, number)
        table.open -= 1


async def _job(client: Client, table: DemoTable, key: bytes, number: int) -> None:
    """By the line's number: mostly its number under the key, sometimes something else besides."""
    newest, flag, value = b"newest/" + key, b"flag/" + key, b"%d" % number
    if number % 10 == 3:
        item = await client.get(newest)
        revision = item.mod if item else 0
        await client.put(newest, value, if_revision=revision)
        table.done["compare and set"] += 1
        try:
            await client.put(newest, b"never", if_revision=revision)  # it was replaced a moment ago
        except CompareFailed:
            table.done["compare failed"] += 1
    else:
        await client.put(newest, value)
        table.done["put"] += 1
    if number % 5 == 1:
        # The condition holds for every other value, so both branches run.
        transaction = TxnIn(
            compare=[compare(flag, "version", "=", 0)],
            then=[step("put", flag, value)],
            orelse=[step("delete", flag), step("put", SCRATCH + key, value)],
        )
        done = await client.txn(transaction)
        table.done["then branch" if done.succeeded else "else branch"] += 1
    elif number % 20 == 7:
        await client.delete(flag)
        table.done["delete"] += 1
