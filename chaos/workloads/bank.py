"""Moves money between accounts by transactions, and checks that one read of all accounts always has the same sum.

Banks change after a while, so that each has a history that the search can decide.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from raftlog import Client, ClientError, compare, prefix_end, step
from raftlog.chaos.judge.history import Operation
from raftlog.chaos.judge.log_truth import LogTruth
from raftlog.chaos.workloads.workload import Answer, OperationGivenUp, Workload, placed
from raftlog.cluster.api.kv import TxnIn

PREFIX: Final = "b/"
ACCOUNTS: Final = tuple(f"account-{letter}" for letter in "abcde")
MOVED: Final = f"{PREFIX}moved/"
"""One key per process, which every transfer of it puts again: so each transfer can be found in the log."""

GENERATION: Final = 300
"""Operations until another bank is used."""

START: Final = 100
READ_SHARE: Final = 0.4
AMOUNT_MAX: Final = 60
TRIES_MAX: Final = 4
"""Transactions tried for one transfer, when others move the same money meanwhile."""


@dataclass(slots=True)
class Bank(Workload):
    """The workload."""

    name: str = "bank"
    model: str = "bank"
    init: Any = field(default_factory=lambda: dict.fromkeys(ACCOUNTS, START))  # every account's balance
    started: int = 0
    _open: set[str] = field(default_factory=set)

    async def ask(self, client: Client, node: int | None, process: str, chance: random.Random) -> None:
        """Reads a bank, or moves money."""
        bank = f"{PREFIX}{self.started // GENERATION}/"
        if bank not in self._open and not await self._opened(client, bank):
            return
        self.started += 1
        if chance.random() < READ_SHARE:
            await self.recorder.run(process, "read", lambda: _read(client, bank), key=bank, node=node, writes=False)
        else:
            value = _drawn(chance, f"{process}:{self.started}")
            call = partial(_transfer, client, process, bank, value)
            await self.recorder.run(process, "transfer", call, key=bank, value=value, node=node)

    async def _opened(self, client: Client, bank: str) -> bool:
        """Puts the money into a bank, unless somebody has."""
        names = [f"{bank}{account}".encode() for account in ACCOUNTS]
        puts = [step("put", name, b"%d" % START) for name in names]
        try:
            await client.txn(TxnIn(compare=[compare(names[0], "create", "=", 0)], then=puts))
        except ClientError:
            return False
        self._open.add(bank)
        return True

    def marks(self, operation: Operation) -> Sequence[str]:
        """What the transfer puts beside the money."""
        return (operation.value["mark"],) if operation.f == "transfer" else ()

    def places(self, log: LogTruth) -> Mapping[str, Sequence[int]]:
        """Every transfer that moved money."""
        return placed((value or "", index) for index, _, value in log.values(MOVED))

    def judge(self, log: LogTruth) -> list[str]:
        """Checks that no change ever broke the sum, also between two reads."""
        sums: dict[str, list[tuple[int, int]]] = {}  # of each bank after each of its changes
        banks: dict[str, dict[str, int]] = {}
        for index, key, value in log.values(PREFIX):
            if key.startswith(MOVED):
                continue
            bank, _, account = key.rpartition("/")
            balances = banks.setdefault(bank, {})
            balances[account] = int(value or 0)
            totals = sums.setdefault(bank, [])
            if totals and totals[-1][0] == index:
                totals.pop()
            totals.append((index, sum(balances.values())))
        return [
            f"after index {index} the sum of {bank} is {total}"
            for bank, totals in sums.items()
            for index, total in totals
            if total != START * len(ACCOUNTS)
        ][:5]


def _drawn(chance: random.Random, mark: str) -> dict[str, Any]:
    giver, taker = chance.sample(ACCOUNTS, 2)
    return {"from": giver, "to": taker, "amount": chance.randint(1, AMOUNT_MAX), "mark": mark}


async def _page(client: Client, bank: str) -> tuple[dict[str, tuple[int, int]], int]:
    """Balance and mod revision of each account, and as of which index. The bank is open, so an account that is not
    there was lost: it has nothing."""
    page = await client.range_page(bank.encode(), prefix_end(bank.encode()), limit=100)
    items = {item.key.decode().removeprefix(bank): (int(item.value), item.mod) for item in page.items}
    return dict.fromkeys(ACCOUNTS, (0, 0)) | items, page.index


async def _read(client: Client, bank: str) -> Answer:
    items, index = await _page(client, bank)
    return Answer({account: balance for account, (balance, _) in items.items()}, index=index)


async def _transfer(client: Client, process: str, bank: str, value: dict[str, Any]) -> Answer:
    """Reads both accounts, then moves the money if no other transfer changed them since."""
    amount = value["amount"]
    for _ in range(TRIES_MAX):
        items, index = await _page(client, bank)
        (given, given_mod), (taken, taken_mod) = items[value["from"]], items[value["to"]]
        if given < amount:
            return Answer(value, False, index)
        giver, taker = f"{bank}{value['from']}".encode(), f"{bank}{value['to']}".encode()
        done = await client.txn(
            TxnIn(
                compare=[compare(giver, "mod", "=", given_mod), compare(taker, "mod", "=", taken_mod)],
                then=[
                    step("put", giver, b"%d" % (given - amount)),
                    step("put", taker, b"%d" % (taken + amount)),
                    step("put", f"{MOVED}{process}".encode(), value["mark"].encode()),
                ],
            )
        )
        if done.succeeded:
            return Answer(value, True, done.index, done.term, repeated=done.result == "repeated")
    raise OperationGivenUp
