"""PostgreSQL gets no position beyond the state file: at each report, with any timing, also without a leader."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec
from hypothesis import Phase, example, given, settings, strategies as st

from raftlog.cluster.importer import sources
from raftlog.cluster.importer.postgres import source
from raftlog.cluster.importer.postgres.catalog import ReplicationSlot
from raftlog.cluster.importer.postgres.connection import Alive, ConnectionLost
from raftlog.cluster.importer.postgres.messages import Begin, Commit, Message, PgColumn, Relation, RowInserted
from raftlog.cluster.importer.postgres.snapshot import SnapshotPosition
from raftlog.cluster.importer.postgres.source import PgPosition, Postgres
from raftlog.cluster.importer.postgres.values import as_lsn, lsn_of
from raftlog.cluster.importer.session_file import CopyState
from tests.cluster.importer.fake_log import FakeLog
from tests.cluster.importer.jobs import Killed

TABLE = Relation(1, "public.t", "d", (PgColumn("a", 23, True),))
START = 8
REPORTS_MAX = 200_000
"""A copy that has all it needs makes some hundred, also while its other thread waits for a core."""


class FakePostgres:
    """A server with one slot: transactions of one table, sent from the position on which the client goes on."""

    log: FakeLog

    def __init__(self, random: Random, state: Path) -> None:
        self.random, self.state = random, state
        self.sizes = [random.randrange(1, 6) for _ in range(random.randrange(1, 8))]
        self.forgotten = START
        self.reports = 0
        self.reported = threading.Condition()
        self.time = 0.0
        self.is_open = False
        self._sending: Iterator[bytes | Alive] = iter(())

    def stream(self, lsn: int) -> Iterator[bytes | Alive]:
        """The messages after a position, with reports of the server also within transactions."""
        for name, message in self.messages():
            end = int(name.split()[0])
            if message is TABLE or end > lsn:
                yield name
                if self.random.random() < 0.2:
                    later = isinstance(message, Commit) and self.random.randrange(2)
                    yield Alive(end + later, wants_report=self.random.random() < 0.5)

    def messages(self) -> Iterator[tuple[bytes, Message]]:
        """All messages by name: the end of the transaction, and a number."""
        yield b"0 0", TABLE
        for number, size in enumerate(self.sizes, start=1):
            commit, end = START + 10 * number, START + 10 * number + 3
            yield b"%d begin" % end, Begin(commit, 0, number)
            for row in range(size):
                yield b"%d %d" % (end, row), RowInserted(1, [b"%d" % row])
            yield b"%d commit" % end, Commit(commit, end)

    def held(self) -> int:
        """The position in the state file: of the kept batch, if there is one."""
        found = msgspec.json.decode(self.state.read_bytes())
        return int((found["kept"] or found)["position"]["lsn"])

    # -- what `Postgres` needs of a connection

    def query(self, _: str) -> list[tuple[str | None, ...]]:
        """Which system this is."""
        return [("7",)]

    def start(self, _slot: str, lsn: str, _publication: str) -> None:
        """The stream begins."""
        self.is_open = True
        self._sending = self.stream(lsn_of(lsn))

    def received(self, _: float) -> bytes | Alive | None:
        """The next message, or nothing for now, or the connection breaks."""
        chance = self.random.random()
        if chance < 0.02:
            raise ConnectionLost("the connection broke")
        return next(self._sending, None) if chance < 0.7 else None

    def report(self, _written: int, flushed: int, *, asks: bool = False) -> None:
        """The client says before which position this server may forget. The state file must hold what came before."""
        assert self.forgotten <= flushed <= self.held(), f"reported {flushed}, and the state file holds {self.held()}"
        ends = [START + 10 * number + 3 for number in range(1, len(self.sizes) + 1)]
        needed = sum(size for size, end in zip(self.sizes, ends, strict=True) if end <= flushed)
        assert len(self.log.records) >= needed, f"reported {flushed}, and records before it are not in the log"
        assert self.reports < REPORTS_MAX, "nothing more comes"
        with self.reported:
            self.forgotten, self.reports = flushed, self.reports + 1
            self.reported.notify_all()

    def close(self) -> None:
        """The connection ends."""
        with self.reported:
            self.is_open = False
            self.reported.notify_all()

    def monotonic(self) -> float:
        """A clock that jumps as slow programs see it."""
        self.time += self.random.choice([0.0, 0.5, 2.0, 20.0, 20.0])
        return self.time


class SlowLog(FakeLog):
    """A log and a disk on which each step may last as long as some reports of the client."""

    def __init__(self, random: Random, server: FakePostgres) -> None:
        super().__init__()
        self.random, self.server, server.log = random, server, self

    def step(self, _: object = None) -> None:
        """A file is synced, or an append comes or is answered."""
        server, until = self.server, self.server.reports + self.random.choice([0, 0, 1, 3, 8])
        with server.reported:
            assert server.reported.wait_for(lambda: server.reports >= until or not server.is_open, timeout=60)
        super().step()


def copied(server: FakePostgres, log: SlowLog) -> None:
    """Copies until all is in the log and reported to the server, or until the copy is killed."""
    made = Postgres("", snapshot=server.state.with_name("snapshot"), slot="s")
    copy = sources.copy(made, log, server.state, batch_records=3, at=log.step)  # type: ignore[arg-type]
    with closing(copy):  # type: ignore[type-var]
        for each in copy:
            if each.records == sum(server.sizes):
                with server.reported:
                    assert server.reported.wait_for(lambda: server.forgotten == server.held() or not server.is_open, 60)
                break
    assert made._has_ended.wait(60)


@example(307_301_017)  # a report before the state file is written
@example(8_095_599)  # one while a transaction is open
@given(st.integers(0, 2**32 - 1))
@settings(max_examples=150, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_postgres_is_told_only_what_the_state_file_holds(seed: int) -> None:
    """Connections break, the copy is killed, clocks jump, and the log has no leader for longer than the period of
    reports. At each report everything before its position is in the state file, and in the end in the log, once."""
    random = Random(seed)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        server = FakePostgres(Random(seed + 1), Path(folder) / "state")
        log = SlowLog(random, server)
        begun = PgPosition("7", START, reached=SnapshotPosition())
        state = CopyState(1, "PostgreSQL slot s", log.log, position=source._part([], begun).position)
        server.state.write_bytes(msgspec.json.encode(state))
        decoded = dict(server.messages())
        changed: dict[str, Any] = {
            "PgConnection": lambda _: server,
            "check_server": lambda _: None,
            "published": lambda *_: [],
            "find_slot": lambda *_: ReplicationSlot(server.forgotten, is_lost=False, is_ours=True),
            "RETRY_S": 0,
            "decode": decoded.get,
            "time": server,
            "PART_RECORDS": random.randrange(1, 5),
        }
        stack.enter_context(log.in_place())
        for name, value in changed.items():
            stack.enter_context(patch.object(source, name, value))
        for _ in range(random.randrange(4)):
            log.steps_left = random.randrange(1, 40)
            try:
                copied(server, log)
            except Killed:
                pass
        log.steps_left = 0
        copied(server, log)
        found = [json.loads(record.value or b"") for record in log.records]
        assert [(each["lsn"], each["n"]) for each in found] == [
            (as_lsn(START + 10 * number), row + 1)
            for number, size in enumerate(server.sizes, start=1)
            for row in range(size)
        ]
