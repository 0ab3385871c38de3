"""A state machine of one's own for the simulator: accounts, and records that move money between them.

    cd docs/examples && raftlog sim --state-machine bank:Bank --seeds 0:20

Every node of every simulated cluster keeps a Bank. The simulator crashes, cuts off and restarts the nodes, and checks
that all Banks are equal after the same record, that a Bank restored from a snapshot equals the one that made it, and
that `apply` raises nothing: so whatever must always hold is an assert in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from random import Random

ACCOUNTS = 8
MONEY = 100 * ACCOUNTS


class Bank:
    """Accounts that no transfer can overdraw. See raftlog.chaos.sim.ground.machines.Machine for what each method must
    do."""

    def __init__(self) -> None:
        self.accounts: list[int] = [100] * ACCOUNTS
        self.refused = 0

    def apply(self, index: int, record: bytes) -> int | None:
        """Carry out `{"from": 1, "to": 2, "money": 5}`; what `from` has left, or None if nothing was done."""
        try:
            transfer = json.loads(record)
            source, target = int(transfer["from"]), int(transfer["to"])
            money = int(transfer["money"])
        except (ValueError, TypeError, KeyError):  # the simulator's clients append other records too
            return None
        if self.accounts[source] < money:
            self.refused += 1
            return None
        self.accounts[source] -= money
        self.accounts[target] += money
        assert sum(self.accounts) == MONEY, f"record {index} made money"
        return self.accounts[source]

    def digest(self) -> str:
        """Equal if and only if the states are. Text, not the list itself: the list would change later."""
        return f"{self.accounts} {self.refused}"

    def snapshot(self) -> Iterator[bytes]:
        """Everything, in the same bytes on every node."""
        yield json.dumps([self.accounts, self.refused]).encode()

    @classmethod
    def restore(cls, chunks: Iterable[bytes]) -> Bank:
        """The Bank that made those chunks."""
        bank = cls()
        bank.accounts, bank.refused = json.loads(b"".join(chunks))
        return bank

    @staticmethod
    def record(random: Random) -> bytes:
        """A record for clients to append."""
        source, target = random.sample(range(ACCOUNTS), 2)
        return json.dumps({"from": source, "to": target, "money": random.randint(1, 60)}).encode()
