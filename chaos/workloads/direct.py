"""Sends direct requests: appends, log reads, waiting reads and long polls, each once to one node.

Every node always has a long poll, and mostly a read, under way. So they meet installs, trims, losses of leadership and
restarts. Each answer is compared with the truth of the tracer, internal records included. It counts as the node gave
it: no session and no second attempt hides a wrong outcome. `DirectStore` does the same with keys, for the workload of
registers.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from raftlog.chaos.judge.history import Operation
from raftlog.chaos.judge.log_checker import records_of
from raftlog.chaos.judge.log_truth import LogTruth
from raftlog.chaos.workloads.direct_client import Direct
from raftlog.chaos.workloads.tracer import COMPACTED, Tracer
from raftlog.chaos.workloads.workload import DIRECT, Answer, OperationGivenUp, Workload, placed
from raftlog.cluster.api.errors import ERRORS, Code
from raftlog.cluster.api.headers import H_KEY, JSON
from raftlog.cluster.api.kv import KeyAnswer, RangeAnswer, TxnAnswer
from raftlog.cluster.api.records import Appended, LogPageJson

READERS: Final = 2
"""At each node, beside one that polls."""

WRITERS: Final = 4
"""At each node: several of their appends are under way when a leader is lost."""

APPEND_THINK_S: Final = 0.04
READ_THINK_S: Final = 0.1
PADDING_BYTES_MAX: Final = 1_200
"""Of the key of a record: the log grows by 100 kB a second, so that it is trimmed all the time."""

READ_RECORDS: Final = 300
BEHIND_RECORDS: Final = 400
"""Some reads begin at most so far behind the newest applied index of their node."""

JUMP_RECORDS: Final = 40
"""A node whose state is so much further than before has caught up, or taken a snapshot. Some reads begin a little
before such an edge: what a node keeps in memory may have a hole there."""

EDGES: Final = 3
"""Newest edges of a node that are read again and again."""

EDGE_RECORDS: Final = 100

AHEAD_RECORDS: Final = 30
"""A waiting read asks for a state up to so many records after the newest applied index of its node."""

DEADLINE_S: Final = 3.0
POLL_S: Final = (0.3, 4.0)

OVERTAKEN_MAX: Final = 40
"""Answers of a node that may come before that of an older waiting request, all from a state that it waits for."""

_page = msgspec.json.Decoder(LogPageJson).decode
_appended = msgspec.json.Decoder(Appended).decode
_got = msgspec.json.Decoder(KeyAnswer).decode
_range = msgspec.json.Decoder(RangeAnswer).decode
_txn = msgspec.json.Decoder(TxnAnswer).decode
NOT_FOUND: Final = ERRORS[Code.KEY_NOT_FOUND].status


@dataclass(slots=True)
class DirectLog(Workload):
    """The workload. It shares the nodes' own addresses, the connections and the truth with the tracer."""

    name: str = "direct"
    model: str = "log"
    tracer: Tracer = field(default_factory=Tracer)
    gone: list[tuple[int, int, int]] = field(default_factory=list)  # node, index asked for, oldest of its answer
    _answers: dict[int, list[int]] = field(default_factory=dict)  # node -> applied index of each answer, in order
    _edges: dict[int, deque[int]] = field(default_factory=dict)  # node -> where its state jumped ahead

    async def run(self) -> None:
        """All processes of all nodes. When it returns, every request has its answer or its bound has passed."""
        async with asyncio.TaskGroup() as group:
            for node in self.tracer.urls:
                self._answers[node], self._edges[node] = [], deque(maxlen=EDGES)
                for number in range(WRITERS):
                    group.create_task(self._appends(node, number))
                group.create_task(self._polls(node))
                for number in range(READERS):
                    group.create_task(self._reads(node, number))

    async def _appends(self, node: int, number: int) -> None:
        process = f"{DIRECT}append-{node}.{number}"
        chance = self.arena.chance(process)
        count = 0
        while not self.arena.stopping.is_set():
            count += 1
            record = f"{process}:{count}"
            padding = "p" * chance.randrange(1, PADDING_BYTES_MAX)

            async def call(record: str = record, padding: str = padding) -> Answer:
                body = await self.tracer.direct.write(
                    f"{self.tracer.urls[node]}/v1/log",
                    deadline_s=DEADLINE_S,
                    data=record.encode(),
                    headers={H_KEY: padding, "Content-Type": "text/plain"},
                )
                done = _appended(body)
                return Answer(record, index=done.last, term=done.term)

            await self.recorder.run(process, "append", call, value=record, node=node)
            await self.arena.think(chance, APPEND_THINK_S)

    async def _reads(self, node: int, number: int) -> None:
        process = f"direct-read-{node}.{number}"
        chance = self.arena.chance(process)
        while not self.arena.stopping.is_set():
            top = self._top(node)
            drawn, edges = chance.random(), self._edges[node]
            if drawn < 0.3 and edges:
                start = max(self.tracer.oldest, chance.choice(edges) - chance.randrange(EDGE_RECORDS))
            elif drawn < 0.6:
                start = max(self.tracer.oldest, top - chance.randrange(BEHIND_RECORDS))
            else:
                start = chance.randint(min(self.tracer.oldest, top + 1), top + 1)
            min_index = top + chance.randrange(AHEAD_RECORDS) if chance.random() < 0.25 else 0
            if min_index:
                start = top + 1  # that record is in memory then, and no peer is asked for it
            await self._read(process, node, start, chance, wait_s=0.0, min_index=min_index)
            await self.arena.think(chance, READ_THINK_S)

    async def _polls(self, node: int) -> None:
        process = f"direct-poll-{node}"
        chance = self.arena.chance(process)
        while not self.arena.stopping.is_set():
            start = self._top(node) + 1 + chance.choice((0, 0, 1, AHEAD_RECORDS))
            await self._read(process, node, start, chance, wait_s=chance.uniform(*POLL_S), min_index=0)
            await self.arena.think(chance, 0.0)

    def _top(self, node: int) -> int:
        """The applied index of the newest answer of the node; 0 before its first answer."""
        answers = self._answers[node]
        return answers[-1] if answers else 0

    async def _read(
        self, process: str, node: int, start: int, chance: random.Random, *, wait_s: float, min_index: int
    ) -> None:
        is_linearizable = chance.random() < 0.5
        limit = chance.randint(1, READ_RECORDS)
        target = f"{self.tracer.urls[node]}/v1/log?from={start}&limit={limit}&internal=true&format=json"
        target += "" if is_linearizable else "&consistency=stale"
        target += f"&wait={int(wait_s * 1_000)}" if wait_s else ""
        target += f"&min_index={min_index}" if min_index else ""

        async def call() -> Answer:
            before = len(self._answers[node])
            reply = await self.tracer.direct.ask("GET", target, deadline_s=DEADLINE_S + wait_s)
            if reply.status != 200:
                if reply.status == COMPACTED and (oldest := reply.problem.oldest) is not None:
                    self.gone.append((node, start, oldest))
                raise OperationGivenUp(f"{reply.status}")
            page = self.tracer.take(f"node {node}", start, _page(reply.body))
            if not is_linearizable:  # a linearizable one waits for a round of its leader, however far the state is
                self._is_in_time(node, target, max(min_index, start if wait_s else 0), before)
            if page.index < min_index:
                self.tracer.tell(f"node {node} answered {target} from a state of index {page.index}")
            if 0 < (top := self._top(node)) < page.index - JUMP_RECORDS:
                self._edges[node].append(top)
            self._answers[node].append(page.index)
            rows = [
                [each.index, each.value]
                for each in page.records
                if (each.operation, each.result) == _IS_APPENDED and (each.value or "").startswith(DIRECT)
            ]
            return Answer(rows, index=page.index if is_linearizable else None)

        await self.recorder.run(process, "read", call, node=node, writes=False)

    def _is_in_time(self, node: int, target: str, waits_for: int, before: int) -> None:
        """Whether no crowd of later answers had what this request waited for. The node was alive all that time, so
        the request was not woken."""
        if waits_for:
            overtaken = sum(1 for index in self._answers[node][before:] if index >= waits_for)
            if overtaken > OVERTAKEN_MAX:
                self.tracer.tell(
                    f"node {node} answered {target} after {overtaken} later answers from a state that it waited for"
                )

    def marks(self, operation: Operation) -> Sequence[str]:
        """The records themselves."""
        return records_of(operation) if operation.f == "append" else ()

    def places(self, log: LogTruth) -> Mapping[str, Sequence[int]]:
        """The appends of this workload."""
        return placed((value, index) for index, value in log.appended if value.startswith(DIRECT))

    def judge(self, log: LogTruth) -> list[str]:
        """What answers said is gone. (The tracer keeps findings about their records and their moments.)"""
        before = log.trimmed_before
        return [
            f"node {node} answered: index {index} is trimmed, the oldest {oldest}; the log was trimmed up to {before}"
            for node, index, oldest in self.gone
            if not index < oldest <= before
        ]


_IS_APPENDED: Final = ("append", "applied")


@dataclass(frozen=True, slots=True)
class DirectStore:
    """Keys of one node, asked once and directly. `url` is the node's own address."""

    url: str
    direct: Direct

    async def read(self, key: str) -> Answer:
        reply = await self.direct.ask("GET", f"{self.url}/v1/kv/{key}", deadline_s=DEADLINE_S)
        if reply.status == NOT_FOUND:
            return Answer(None)
        if reply.status != 200:
            raise OperationGivenUp(f"{reply.status}")
        got = _got(reply.body)
        return Answer(int(got.kv.value or ""), index=got.index)

    async def read_with_index(self, key: str) -> Answer:
        reply = await self.direct.ask("GET", f"{self.url}/v1/kv?prefix={key}&limit=1", deadline_s=DEADLINE_S)
        if reply.status != 200:
            raise OperationGivenUp(f"{reply.status}")
        page = _range(reply.body)
        return Answer(int(page.kvs[0].value or "") if page.kvs else None, index=page.index)

    async def write(self, key: str, value: int) -> Answer:
        """A put, as a transaction: aiohttp sends a PUT a second time when its connection breaks, and a POST never."""
        done = await self._txn([], key, value)
        return Answer(value, index=done.index, term=done.term)

    async def cas(self, key: str, expected: int, value: int) -> Answer:
        compare = {"key": key, "target": "value", "operator": "=", "value": str(expected)}
        done = await self._txn([compare], key, value)
        return Answer([expected, value], done.succeeded, done.index, done.term)

    async def _txn(self, compare: list[dict[str, str]], key: str, value: int) -> TxnAnswer:
        put = {"operation": "put", "key": key, "value": str(value)}
        body = await self.direct.write(
            f"{self.url}/v1/kv/txn",
            deadline_s=DEADLINE_S,
            headers={"Content-Type": JSON},
            data=msgspec.json.encode({"compare": compare, "then": [put]}),
        )
        return _txn(body)
