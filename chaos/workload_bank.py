"""The bank workload: money moves between accounts by transactions, and all accounts read at once have the same sum."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from chaos.checks import Changes
from chaos.history import Operation
from chaos.log_truth import LogTruth
from chaos.workload import Arena, Recorder, Refused, Told
from cluster.client import Client, Page, compare, prefix_end, step
from cluster.wire import TxnIn

PREFIX: Final = "b/"
ACCOUNTS: Final = tuple(f"{PREFIX}account-{letter}" for letter in "abcde")
MOVED: Final = f"{PREFIX}moved/"
"""One key per process, which every transfer of it puts anew: so each transfer can be found in the log."""

START: Final = 100
PROCESSES: Final = 4
READ_SHARE: Final = 0.4
AMOUNT_MAX: Final = 60
TRIES_MAX: Final = 4
"""Transactions tried for one transfer, when others move the same money meanwhile."""

THINK_S: Final = 0.06


@dataclass(slots=True)
class Bank:
    """The workload."""

    arena: Arena
    recorder: Recorder
    name: str = "bank"
    model: str = "bank"

    @property
    def init(self) -> Any:
        """Every account's balance at the start."""
        return dict.fromkeys(ACCOUNTS, START)

    async def prepare(self) -> None:
        """Opens the accounts."""
        client, _ = self.arena.client(0)
        await client.txn(TxnIn(then=[step("put", name.encode(), b"%d" % START) for name in ACCOUNTS]))

    async def run(self) -> None:
        """All processes."""
        await asyncio.gather(*(self._process(number) for number in range(PROCESSES)))

    async def _process(self, number: int) -> None:
        client, node = self.arena.client(number)
        process = f"bank-{number}"
        chance = self.arena.chance(process)
        moved = 0
        while not self.arena.stopping.is_set():
            if chance.random() < READ_SHARE:
                await self.recorder.run(process, "read", lambda: _read(client), node=node, writes=False)
            else:
                moved += 1
                value = _drawn(chance, f"{process}:{moved}")
                await self.recorder.run(
                    process, "transfer", lambda: _transfer(client, process, value), value=value, node=node  # noqa: B023
                )  # fmt: skip
            await self.arena.think(chance, THINK_S)

    def marks(self, operation: Operation) -> Sequence[str]:
        """What the transfer puts beside the money."""
        return (operation.value["mark"],) if operation.f == "transfer" else ()

    def places(self, log: LogTruth) -> Mapping[str, Sequence[int]]:
        """Every transfer that moved money."""
        places: dict[str, list[int]] = {}
        for index, _, value in log.values(MOVED):
            places.setdefault(value or "", []).append(index)
        return places

    def changes(self, log: LogTruth) -> Changes | None:
        """Reads are of all accounts."""
        return None

    async def finish(self, last_index: int) -> None:
        """Nobody follows."""

    def judge(self, log: LogTruth) -> list[str]:
        """No change ever broke the sum, also where nobody looked."""
        balances = dict.fromkeys(ACCOUNTS, 0)
        at, problems = 0, []
        for index, key, value in log.values(f"{PREFIX}account-"):
            if index != at and at and sum(balances.values()) != START * len(ACCOUNTS):
                problems.append(f"after index {at} the sum is {sum(balances.values())}")
            balances[key] = int(value or 0)
            at = index
        if at and sum(balances.values()) != START * len(ACCOUNTS):
            problems.append(f"after index {at}, the last, the sum is {sum(balances.values())}")
        return problems[:5]


def _drawn(chance: random.Random, mark: str) -> dict[str, Any]:
    giver, taker = chance.sample(ACCOUNTS, 2)
    return {"from": giver, "to": taker, "amount": chance.randint(1, AMOUNT_MAX), "mark": mark}


async def _page(client: Client) -> Page:
    prefix = f"{PREFIX}account-".encode()
    return await client.range_page(prefix, prefix_end(prefix), limit=100)


async def _read(client: Client) -> Told:
    page = await _page(client)
    return Told({item.key.decode(): int(item.value) for item in page.items}, index=page.index)


async def _transfer(client: Client, process: str, value: dict[str, Any]) -> Told:
    """Reads both accounts, then moves the money if nobody changed them meanwhile."""
    giver, taker, amount = value["from"], value["to"], value["amount"]
    for _ in range(TRIES_MAX):
        page = await _page(client)
        items = {item.key.decode(): item for item in page.items}
        one, other = items[giver], items[taker]
        if int(one.value) < amount:
            return Told(value, False, page.index)
        done = await client.txn(
            TxnIn(
                compare=[compare(item.key, "mod", "=", item.mod) for item in (one, other)],
                then=[
                    step("put", one.key, b"%d" % (int(one.value) - amount)),
                    step("put", other.key, b"%d" % (int(other.value) + amount)),
                    step("put", f"{MOVED}{process}".encode(), value["mark"].encode()),
                ],
            )
        )
        if done.succeeded:
            return Told(value, True, done.index, done.term, repeated=done.result == "repeated")
    raise Refused
