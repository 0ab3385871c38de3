"""Watches every node's own view during a run, past the proxies: the leader of each term, several times a second."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from raftlog import Client, ClientError
from raftlog.chaos.record.times import Stretch
from raftlog.chaos.workloads.workload import Arena

EVERY_S: Final = 0.1
ASK_S: Final = 0.3
"""A node without an answer for this many seconds is recorded as silent."""

SILENT: Final = "silent"


@dataclass(slots=True)
class Observer:
    """The views of all nodes so far. `urls` are the nodes' own addresses."""

    arena: Arena
    urls: Mapping[int, str]
    stretches: list[Stretch] = field(default_factory=list)
    _last: dict[int, Stretch] = field(default_factory=dict)

    async def run(self) -> None:
        """Until the task is cancelled."""
        await asyncio.gather(*(self._watch(node, url) for node, url in self.urls.items()))

    async def _watch(self, node: int, url: str) -> None:
        async with Client(url, bound=True, sessions=False, deadline_s=ASK_S) as client:
            while True:
                asked_ns = self.arena.now_ns()
                try:
                    status = await client.status()
                except ClientError:
                    self._heard(node, asked_ns, None)
                else:
                    self._heard(node, asked_ns, (status.role, status.term))
                await asyncio.sleep(EVERY_S)

    def _heard(self, node: int, asked_ns: int, role_and_term: tuple[str, int] | None) -> None:
        """What came of a question: role and term, late ones after a time of silence; None: nothing came."""
        if role_and_term is None or self.arena.now_ns() - asked_ns > ASK_S * 1e9:
            last = self._last.get(node)
            self._saw(node, SILENT, last.term if last else 0)
        if role_and_term is not None:
            self._saw(node, *role_and_term)

    def _saw(self, node: int, role: str, term: int) -> None:
        now_ns = self.arena.now_ns()
        last = self._last.get(node)
        from_ns = now_ns
        if last is not None:
            if role == SILENT and last.role != SILENT:
                from_ns = last.until_ns  # it was not heard of since then
            else:
                last.until_ns = now_ns
            if (last.role, last.term) == (role, term):
                return
        self._last[node] = stretch = Stretch(node, role, term, from_ns, now_ns)
        self.stretches.append(stretch)

    @property
    def leader(self) -> tuple[int, int] | None:
        """Node and term of the newest leader that answers."""
        leaders = [(each.term, each.node) for each in self._last.values() if each.role == "leader"]
        return (max(leaders)[1], max(leaders)[0]) if leaders else None
