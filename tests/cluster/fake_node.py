"""Provides a node without consensus, network and disk: it applies at once, and can misbehave on request.

Behind it is the real StateMachine, so what the HTTP layer answers from it is real.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.api.explain import NodeView
from raftlog.cluster.api.members import ClusterView, DiskSeen, MemberAnswer, Members, MemberSeen
from raftlog.cluster.api.status import SetDigestHex, Status, fingerprint
from raftlog.cluster.api.values import LeaderHint
from raftlog.cluster.config.settings import HttpSettings, LimitSettings, Settings
from raftlog.cluster.http.server import build_runner
from raftlog.cluster.protocol.request import RequestResult
from raftlog.cluster.records.entries import last_user_index, log_entry
from raftlog.cluster.replica.interface import NodeInterface
from raftlog.cluster.replica.log.log_reader import compacted
from raftlog.cluster.runtime.metrics import Metrics
from raftlog.cluster.security.tls import Credentials
from raftlog.raft.changes import MemberChange
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.codec.configuration import decode_configuration, encode_configuration
from raftlog.raft.codec.entry import seal_entry
from raftlog.raft.codec.index_rows import IDX_ROW, index_rows
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.types import GENESIS, Entry, EntryKind, Mark
from raftlog.raft.wal.reading import RawSlice
from raftlog.statemachine.commands import Limits, Operation, Result
from raftlog.statemachine.effects import Effects, RequestEffect, encode_effects
from raftlog.statemachine.machine import StateMachine

LOG_ID = "00112233445566778899aabbccddeeff"
START_MS = 1_700_000_000_000


class FakeNode:
    """Applies submitted requests at once, one entry per request, as the one member of its cluster."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.machine = StateMachine(limits)
        self.metrics = Metrics()
        self.log_id = LOG_ID
        self.node_id = 1
        self.term = 1
        self._first = 1  # what it holds begins there
        self.last_user_index = 0
        self.is_ready = True
        self.is_fenced = False
        self.time_ms = START_MS
        self.clock_ms = 0
        self.url = "http://127.0.0.1:1"
        self.leader: LeaderHint | None = None
        self.log: list[tuple[Entry, Effects]] = []
        self.held: asyncio.Event | None = None  # while set to an event, nothing is applied until it is set
        self.refusal: ApiError | None = None  # what the next submits fail with
        self.barriers = 0
        self.changes: list[MemberChange] = []
        self.transfers: list[int] = []
        self.barrier_held: asyncio.Event | None = None  # while set to an event, reads wait for it
        self.applied_more = asyncio.Event()
        member = Member(1, "ab" * 16, "127.0.0.1:2", self.url)
        self.append(EntryKind.CONFIGURATION, encode_configuration(Configuration((member,), (1,))), 1)
        self.append(EntryKind.NOOP, b"", 1)

    @property
    def oldest(self) -> int:
        """As a node's: of the cluster, or later."""
        return max(self.machine.oldest, self._first)

    @oldest.setter
    def oldest(self, first: int) -> None:
        self._first = first

    @property
    def applied(self) -> int:
        """Index of the newest entry: everything is applied at once."""
        return self.machine.applied_index

    committed = applied

    def append(self, kind: EntryKind, data: bytes, count: int) -> tuple[Entry, Effects]:
        """One more entry, applied."""
        previous = self.log[-1][0].mark if self.log else GENESIS
        entry = seal_entry(
            previous, term=self.term, kind=kind, count=count, time_ms=self.time_ms, clock_ms=self.clock_ms, data=data
        )
        decoded = log_entry(entry)
        effects = self.machine.apply(decoded)
        self.log.append((entry, effects))
        self.last_user_index = last_user_index(decoded, effects) or self.last_user_index
        self.applied_more.set()
        self.applied_more = asyncio.Event()
        return entry, effects

    def submit_now(self, *blocks: tuple[bytes, int]) -> list[RequestResult]:
        """Several requests as one entry."""
        entry, effects = self.append(
            EntryKind.COMMANDS, b"".join(block for block, _ in blocks), sum(count for _, count in blocks)
        )
        settled: list[RequestResult] = []
        first = entry.first
        for number, (_, count) in enumerate(blocks):
            effect = RequestEffect(Result.APPLIED, effects.revision) if effects.is_plain else effects.requests[number]
            settled.append(RequestResult(first, first + count - 1, entry.term, effect))
            first += count
        return settled

    def put(self, key: bytes, value: bytes) -> None:
        """One put of a client, as an entry."""
        self.submit_now((encode_block([BlockRecord(Operation.PUT, key, value)]), 1))

    def add(self, value: bytes) -> None:
        """One append of a client, as an entry."""
        self.submit_now((encode_block([BlockRecord(Operation.APPEND, None, value)], plain=True), 1))

    def write_steps(self, index: int) -> None:
        """It keeps no times."""

    def submit(
        self, block: bytes, count: int, *, deadline: float, session: int = 0, sequence: int = 0
    ) -> asyncio.Future[RequestResult]:
        """As Node.submit."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[RequestResult] = loop.create_future()
        if self.refusal is not None:
            future.set_exception(self.refusal)
        elif self.held is not None:
            task = loop.create_task(self._later(future, block, count, deadline))
            future.add_done_callback(lambda _: task)
        else:
            future.set_result(self.submit_now((block, count))[0])
        return future

    async def _later(self, future: asyncio.Future[RequestResult], block: bytes, count: int, deadline: float) -> None:
        assert self.held is not None
        try:
            async with asyncio.timeout_at(deadline):
                await self.held.wait()
        except TimeoutError:
            future.set_exception(ApiError(Code.TIMEOUT, "the write was queued, its outcome unknown at the deadline"))
        else:
            future.set_result(self.submit_now((block, count))[0])

    def read_barrier(self, deadline: float) -> asyncio.Future[int]:
        """As Node.read_barrier."""
        return asyncio.ensure_future(self._read_barrier())

    async def _read_barrier(self) -> int:
        self.barriers += 1
        if self.barrier_held is not None:
            await self.barrier_held.wait()
        if self.refusal is not None:
            raise self.refusal
        return self.applied

    async def wait_applied(self, index: int, deadline: float) -> None:
        """As Node.wait_applied."""
        try:
            async with asyncio.timeout_at(deadline):
                while self.applied < index:
                    await self.applied_more.wait()
        except TimeoutError:
            raise ApiError(Code.DEADLINE, f"index {index} was not applied within the deadline") from None

    async def wait_beyond(self, index: int, deadline: float) -> None:
        """As Node.wait_beyond."""
        try:
            async with asyncio.timeout_at(deadline):
                while self.applied <= index:
                    await self.applied_more.wait()
        except TimeoutError:
            pass

    def _between(self, from_index: int, limit: int, bytes_max: int) -> list[tuple[Entry, Effects]]:
        if from_index < self.oldest:
            raise compacted(self.node_id, from_index, self.oldest)
        found: list[tuple[Entry, Effects]] = []
        count = size = 0
        for entry, effects in self.log:
            if entry.index < from_index:
                continue
            if found and (count >= limit or size >= bytes_max):
                break
            found.append((entry, effects))
            count += entry.index - max(from_index, entry.first) + 1
            size += entry.size
        return found

    async def read_log(self, from_index: int, limit: int, bytes_max: int) -> list[tuple[Entry, Effects]]:
        """As Node.read_log."""
        return self._between(from_index, limit, bytes_max)

    async def read_raw(self, from_index: int, to_index: int, bytes_max: int) -> RawSlice:
        """As Node.read_raw: the segment begins at position 0 with the first entry returned."""
        pairs = self._between(from_index, to_index + 1 - from_index, bytes_max)
        first = pairs[0][0].first
        segment, rows = b"", b""
        for entry, _ in pairs:
            rows += index_rows(entry, len(segment))
            segment += entry.header + entry.data
        assert len(rows) == (pairs[-1][0].index - first + 1) * IDX_ROW.size
        ledger = b"".join(encode_effects(effects) for _, effects in pairs)
        return RawSlice(rows, segment, ledger, 0, first, pairs[-1][0].index + 1)

    async def find_time(self, time_ms: int) -> int:
        """As Node.find_time."""
        return next((entry.first for entry, _ in self.log if entry.time_ms >= time_ms), self.applied + 1)

    def leader_hint(self) -> LeaderHint | None:
        """Whatever the test set."""
        return self.leader

    def status(self) -> Status:
        """As Node.status."""
        return Status(
            log=self.log_id,
            node=1,
            disk=fingerprint("ab" * 16),
            role="leader",
            term=self.term,
            leader=self.leader,
            last=self.applied,
            persisted=self.applied,
            committed=self.applied,
            applied=self.applied,
            oldest=self.oldest,
            last_user_index=self.last_user_index,
            revision=self.machine.revision,
            state=SetDigestHex(*self.machine.digest().as_hex()),
            followers=[],
            sessions=self.machine.session_count,
            uptime_ms=1,
            version="0",
            index=self.applied,
        )

    @property
    def configuration(self) -> Configuration:
        """As Node.configuration."""
        return Configuration((Member(1, "ab" * 16, "127.0.0.1:2", self.url),), (1,))

    def view(self) -> NodeView:
        """As Node.view."""
        return NodeView(
            self.log_id,
            1,
            "leader",
            self.term,
            1,
            1,
            [1],
            [],
            1,
            self.applied,
            self.term,
            self.applied,
            self.applied,
            self.applied,
            self.is_fenced,
            False,
            0,
            2_000,
            1_200,
            False,
            [],
            [],
        )

    def members(self) -> Members:
        """As Node.members."""
        member = MemberAnswer(1, fingerprint("ab" * 16), "127.0.0.1:2", self.url, "voter")
        return Members(self.log_id, [member], self.leader, self.applied, self.term)

    def cluster(self) -> ClusterView:
        """As Node.cluster: of itself."""
        disk = DiskSeen(5 * 10**9, 10**10, None, 900, 0)
        own = MemberSeen(1, self.url, "voter", "leader", self.term, self.applied, self.applied, 0, 0.0, 0, disk)
        return ClusterView(
            log=self.log_id,
            node=1,
            leader=self.leader,
            is_cut_off=False,
            is_changing=False,
            last=self.applied,
            committed=self.applied,
            oldest=self.oldest,
            last_user_index=self.last_user_index,
            revision=self.machine.revision,
            sessions=self.machine.session_count,
            uptime_ms=1,
            members=[own],
            index=self.applied,
            term=self.term,
        )

    def state_mark(self) -> tuple[Mark, int, Configuration]:
        """As Node.state_mark."""
        return self.log[-1][0].mark, 1, decode_configuration(self.log[0][0].data)

    async def change_members(self, change: MemberChange, deadline: float) -> int:
        """Takes every change, and does nothing."""
        self.changes.append(change)
        return self.applied

    async def first_entry(self) -> Entry:
        """The configuration that names this node."""
        return self.log[0][0]

    async def save_snapshot(self, deadline: float) -> int:
        """As if it were saved at once."""
        return self.applied

    async def transfer(self, to: int, deadline: float) -> float:
        """As if somebody took over at once."""
        self.transfers.append(to)
        self.leader = LeaderHint(to or 2, self.url)
        return 0.004


@dataclass(slots=True)
class Served:
    """A node behind its HTTP server."""

    node: Any
    url: str
    port: int
    stop: Callable[[], Coroutine[Any, Any, None]]


@asynccontextmanager
async def serve(
    node: NodeInterface | None = None,
    *,
    http: HttpSettings | None = None,
    fast_path: bool = True,
    port: int = 0,
    credentials: Credentials | None = None,
    **limits: int,
) -> AsyncIterator[Served]:
    """The fake node (or the one given) behind the real HTTP server, on that port or a free one of its own.

    `credentials`: it takes itself for a node with TLS. The port is a plain one all the same."""
    settings = Settings(http=http or HttpSettings(access_log=False), limits=LimitSettings(**limits))
    node = node or FakeNode()
    runner = build_runner(node, settings, fast_path=fast_path, credentials=credentials)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield Served(node, f"http://127.0.0.1:{port}", port, runner.cleanup)
    finally:
        await runner.cleanup()
