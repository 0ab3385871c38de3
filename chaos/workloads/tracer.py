"""Collects the whole log during a run, from every node, before retention trims it.

One reader for each node follows that node's applied log, past the proxies. All that any reader is given goes into one
truth: two records at one index are a finding, whichever node gave them and whenever. So an applied entry that a power
cut takes away again is seen as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from raftlog.chaos.workloads.direct_client import Direct
from raftlog.chaos.workloads.workload import AFTER_FAILURE_S, OperationGivenUp
from raftlog.cluster.api.errors import ERRORS, Code
from raftlog.cluster.api.records import LogPageJson, LogRecord
from raftlog.cluster.client.errors import OutcomeUnknown

PAGE_RECORDS: Final = 1_000
WAIT_S: Final = 1.0
PROBLEMS_MAX: Final = 20

_page = msgspec.json.Decoder(LogPageJson).decode
COMPACTED: Final = ERRORS[Code.COMPACTED].status


@dataclass(slots=True)
class Tracer:
    """What nodes gave of the log so far. `urls` are the nodes' own addresses."""

    urls: Mapping[int, str] = field(default_factory=dict)
    direct: Direct = field(default_factory=Direct)
    truth: dict[int, LogRecord] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    oldest: int = 1  # by the newest answer

    async def run(self) -> None:
        """Follows every node until the task is cancelled."""
        await asyncio.gather(*(self._follow(node, url) for node, url in self.urls.items()))

    async def _follow(self, node: int, url: str) -> None:
        position = 1
        while True:
            target = (
                f"{url}/v1/log?from={position}&limit={PAGE_RECORDS}&wait={int(WAIT_S * 1_000)}&internal=true"
                "&consistency=stale&format=json"
            )
            try:
                reply = await self.direct.ask("GET", target, deadline_s=2 * WAIT_S)
            except (OperationGivenUp, OutcomeUnknown):
                await asyncio.sleep(AFTER_FAILURE_S)
                continue
            if reply.status == 200:
                position = self.take(f"node {node}", position, _page(reply.body)).next
            elif reply.status == COMPACTED and (oldest := reply.problem.oldest) is not None and oldest > position:
                position = oldest
            else:
                await asyncio.sleep(AFTER_FAILURE_S)

    def take(self, teller: str, start: int, page: LogPageJson) -> LogPageJson:
        """Compares a page that was asked for from `start` on, internal records included, with all that is known."""
        self.oldest = max(self.oldest, page.oldest)
        indexes = [record.index for record in page.records]
        if page.next < start or indexes != list(range(start, page.next)):
            hole = next((should for should, index in enumerate(indexes, start=start) if index != should), page.next)
            self.tell(f"{teller} was asked from index {start} on and gave up to {page.next}, but not index {hole}")
        if page.next > page.index + 1 and indexes:
            self.tell(f"{teller} gave records up to {page.next} when it had applied {page.index}")
        self.know(teller, page.records)
        return page

    def know(self, teller: str, records: Sequence[LogRecord]) -> None:
        """Adds records to the truth, or says where they differ from it."""
        truth = self.truth
        for record in records:
            known = truth.setdefault(record.index, record)
            if known != record:
                self.tell(f"{teller} gave {record} at an index where another answer gave {known}")

    def tell(self, problem: str) -> None:
        """Keeps a finding, unless there are many already."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)
