"""Simulates sinks: two runners follow the log of the nodes into one store, and every commit there is judged.

In some worlds a writer changes rows, and two runners of one sink take turns. They are killed, stand still and write
late; their store loses connections and answers, and is put back to a copy. They use the product's decisions, mapping,
batches and writer. After each commit the rows of the store are compared with a naive fold of the applied log up to the
store's position. A healed world must bring the store to the end of the log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from functools import partial
from random import Random
from typing import Any, Final

from raftlog.chaos.sim.clients.sink_store import TABLE, SinkConnection, SinkServer
from raftlog.chaos.sim.ground.failure import Failure, NoProgress
from raftlog.chaos.sim.replica.answers import Applied
from raftlog.chaos.sim.replica.node import Node
from raftlog.chaos.sim.world.world import World
from raftlog.cluster.api.errors import Code, Problem
from raftlog.cluster.api.values import NUMBER_MAX
from raftlog.cluster.client.answers import LogPage, Record, record
from raftlog.cluster.records.rows import as_record, decode_rows, is_user_row
from raftlog.cluster.replica.replica import Replica
from raftlog.cluster.sinks.changes import RowChanges, StorePosition, StoreRow
from raftlog.cluster.sinks.following import LogFollower, first_index
from raftlog.cluster.sinks.mapping import RowMapping, SinkSource
from raftlog.cluster.sinks.store import PositionMoved, SinkIdentity, StoreError, StoreFenced, StoreUnavailable
from raftlog.cluster.sinks.stores.sql import SqlStore
from raftlog.raft.codec.block import BlockRecord, decode_blocks, decode_records, encode_block
from raftlog.raft.types import Entry, EntryKind
from raftlog.statemachine.answers import answer_of
from raftlog.statemachine.commands import ConsumerGroup, Operation, Result, Txn, TxnOperation
from raftlog.statemachine.consumers import ConsumerAction, ConsumerCommand, encode_consumer
from raftlog.statemachine.effects import Effects
from raftlog.statemachine.txn import encode_txn

EQUAL: Final = "a sink's store equals the log up to its position"
FENCED: Final = "a sink's runner writes nothing after a younger one has opened the store"
ARRIVES: Final = "a sink's store reaches the end of a healed log"
WORLDS: Final = 4
"""One world of so many has a sink."""

GROUP: Final = b"sink/copy"
SINK: Final = SinkIdentity("copy", "log", "mapping")
PREFIX: Final = b"row/"
CAPTURED: Final = "public.rows"
ROWS: Final = 5
WRITE_US: Final = 250_000
TROUBLE_US: Final = 3_000_000
"""How often the writer writes, and a fault hits runners or store, on average, in microseconds."""

PATIENCE_US: Final = 2_000_000
AWAY_US: Final = 15_000_000
"""Longest time that a runner is down or stands still, in microseconds."""

IDLE_US: Final = 300_000
NODES_ASKED: Final = 20
"""Nodes that a runner asks for a page, one after the other, before it begins again."""

REPORT_US: Final = 1_000_000
ARRIVES_US: Final = 60_000_000

Ask = Callable[[Callable[[Any], None]], None]
"""Asks a node or the store; its argument takes the answer, or the exception."""

Rows = dict[int, StoreRow | None]
"""What becomes of rows, by their keys."""

Steps = Generator[Ask, Any, Any]


class _NodeSilentError(Exception):
    """No answer, or a refusal that may pass."""


class _LogTrimmedError(Exception):
    """The log that the store needs is trimmed."""


class Sinks:
    """The sink of a world, if it has one: a writer, two runners, their store, and the judge."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = random = Random(f"{world.seed} sinks")
        self.server: SinkServer | None = None
        if world.yours is not None or random.randrange(WORLDS):
            return
        self._fate = Random(f"{world.seed} sink faults")  # a fault that is left out changes no other
        self.server = SinkServer(Random(f"{world.seed} sink store"), lambda: world.is_healed or not world.swarm.faults)
        self.is_captured = random.getrandbits(1) == 1
        self.batch_rows_max = random.choice((1, 3, 10))
        self.oldest = 1  # the highest index that any node has taken for the oldest one
        self._applied = 0
        self._meanings: dict[bytes, tuple[Rows, bool]] = {}  # of a value: rows, and whether a transaction ends
        self._changes: list[tuple[int, Rows, bool]] = []  # of the records that were applied, by index
        self._count = 0
        self.runners = [Runner(self, self.server, Random(f"{world.seed} sink runner {number}")) for number in range(2)]
        world.after(random.randint(1, 2 * WRITE_US), self._write)
        world.after(random.randint(1, 2 * WRITE_US), self.runners[0].start)
        world.after(self._fate.randint(1, 2 * TROUBLE_US), self._trouble)

    def mapping(self) -> RowMapping:
        """What the sink makes of records."""
        source = SinkSource(table=CAPTURED) if self.is_captured else SinkSource(keys=PREFIX.decode())
        key = "value.id:bigint" if self.is_captured else "suffix:bigint"
        return RowMapping(source, {"id": key, "n": "value.n:bigint"}, ["id"])

    # -- what happens ------------------------------------------------------------------------------------------

    def _trouble(self) -> None:
        world, random, server = self.world, self._fate, self.server
        if world.is_healed or not world.swarm.faults or server is None:
            return
        world.after(random.randint(1, 2 * TROUBLE_US), self._trouble)
        runner, away_us, what = random.choice(self.runners), random.randint(10_000, AWAY_US), random.randrange(5)
        if what == 0 and world.fault("kill sink", (), "", away_us):
            runner.kill()
            world.after(away_us, runner.start)
        elif what == 1 and world.fault("pause sink", (), "", away_us):
            runner.stands_until_us = world.now_us + away_us
        elif what == 2 and world.fault("second sink", ()):
            runner.start()
        elif what == 3:
            server.copy()
        elif what == 4 and world.fault("restore sink's store", ()):
            server.restore()

    def _write(self) -> None:
        world, random = self.world, self.random
        world.after(random.randint(1, 2 * WRITE_US), self._write)
        self._count += 1
        records = self._captured() if self.is_captured else [self._keys()]
        block = encode_block(records, plain=self.is_captured)
        node = random.choice(list(world.replicas))
        world.replicas[node].submit(block, len(records), 0, 0, world.now_us + PATIENCE_US, lambda _: None)

    def _keys(self) -> BlockRecord:
        """A change of several keys, which is one record."""
        random = self.random
        rows: Rows = dict.fromkeys(range(random.randrange(ROWS)))
        if random.randrange(10) == 0:
            return self._meant(BlockRecord(Operation.DELETE_RANGE, PREFIX, PREFIX + b"%d" % len(rows)), rows)
        rows = {
            key: (key, self._count) if random.randrange(4) else None
            for key in random.sample(range(ROWS), random.randint(1, 4))
        }
        steps = [
            TxnOperation(Operation.DELETE, PREFIX + b"%d" % key)
            if row is None
            else TxnOperation(Operation.PUT, PREFIX + b"%d" % key, b'{"n":%d}' % row[1])
            for key, row in rows.items()
        ]
        return self._meant(BlockRecord(Operation.TXN, None, encode_txn(Txn((), tuple(steps), ()))), rows)

    def _captured(self) -> list[BlockRecord]:
        """A transaction of a database, whose changes are records."""
        random, records = self.random, []
        for left in reversed(range(random.randint(1, 4))):
            old, new, n = random.randrange(ROWS), random.randrange(ROWS), 10 * self._count + left
            op = random.choice(("insert", "insert", "insert", "update", "update", "delete", "truncate"))
            change = {"op": op, "table": CAPTURED, "lsn": f"0/{self._count:X}", "xid": self._count, "last": not left}
            rows: Rows = dict.fromkeys(range(ROWS)) if op == "truncate" else {}
            if op in ("update", "delete"):
                change["before"], rows[old] = {"id": old}, None
            if op in ("update", "insert"):
                change["after"], rows[new] = {"id": new, "n": n}, (new, n)
            value = json.dumps(change, separators=(",", ":")).encode()
            records.append(self._meant(BlockRecord(Operation.APPEND, None, value), rows, is_last=not left))
        return records

    def _meant(self, record: BlockRecord, rows: Rows, *, is_last: bool = True) -> BlockRecord:
        self._meanings[record.value or b""] = rows, is_last
        return record

    # -- the judge ---------------------------------------------------------------------------------------------

    def applied(self, entry: Entry, effects: Effects, oldest: int) -> None:
        """Some node applied this entry, and takes `oldest` for the oldest index."""
        if self.server is None or entry.index <= self._applied:
            return
        self._applied, self.oldest = entry.index, max(self.oldest, oldest)
        index = entry.before
        for number, block in enumerate(decode_blocks(entry.data) if entry.kind is EntryKind.COMMANDS else ()):
            if effects.is_plain or effects.requests[number].result is Result.APPLIED:
                for place, each in enumerate(decode_records(block), index + 1):
                    if (meaning := self._meanings.get(each.value or b"")) is not None:
                        self._changes.append((place, *meaning))
            index += block.count

    def judge(self, generation: int, begun: StorePosition | None) -> None:
        """A runner of that generation committed, and wrote a first position if `begun` is one. Raises Failure."""
        server = self.server
        assert server is not None
        if generation < server.youngest:
            raise Failure(FENCED, f"generation {generation} wrote, {server.youngest} has opened the store")
        if begun is not None:
            server.begins = begun.next
        if server.begins > self.oldest:
            raise Failure(EQUAL, f"it begins at {server.begins}, and the log at {self.oldest}")
        end, is_whole = server.next_index(), True
        rows: Rows = {}
        for index, changes, is_last in self._changes:
            if server.begins <= index < end:
                rows |= changes
                is_whole = is_last
        expected = {key: row for key, row in rows.items() if row is not None}
        if server.rows() != expected or not is_whole:
            raise Failure(EQUAL, f"from {server.begins} to {end} the log has {expected}, the store {server.rows()}")
        self.world.count("commits of a sink judged")

    def arrive(self) -> None:
        """Waits until the store of a healed world has the whole log. Raises NoProgress."""
        world, server = self.world, self.server
        if server is None or not self._changes:
            return
        last = self._changes[-1][0]
        if not world.run_until(world.now_us + ARRIVES_US, lambda: server.next_index() > last):
            raise NoProgress(ARRIVES, f"it is at {server.next_index()}, the log at {last}")


class Runner:
    """One process after the other that runs the sink."""

    def __init__(self, sinks: Sinks, server: SinkServer, random: Random) -> None:
        self.stands_until_us = 0
        self._sinks, self._server, self._random = sinks, server, random
        self._world = sinks.world
        self._mapping = sinks.mapping()
        self._store = SqlStore(SinkConnection(server), TABLE, self._mapping)
        self._turn = 0  # what belongs to an earlier one is void
        self._group: ConsumerGroup | None = None
        self._reported_us = 0
        self._steps = self._session()

    def kill(self) -> None:
        """SIGKILL."""
        self._turn += 1
        self._store.close()

    def start(self) -> None:
        """A new process, in the place of one that may run still."""
        self.kill()
        self._group = None
        self._try(self._turn)

    def _try(self, turn: int) -> None:
        if turn == self._turn:
            self._steps = self._session()
            self._go_on(turn, None)

    def _go_on(self, turn: int, answer: Any) -> None:
        """The newest question has an answer."""
        if turn != self._turn:
            return
        self._turn = turn = turn + 1
        try:
            ask = self._steps.throw(answer) if isinstance(answer, Exception) else self._steps.send(answer)
        except StoreFenced:
            self._world.sometimes("a sink's runner was fenced")
            self._store.close()
            return
        except (StoreUnavailable, PositionMoved, _NodeSilentError, _LogTrimmedError) as error:
            self._world.count(f"tries of a sink ended by {type(error).__name__}")
            if isinstance(error, _LogTrimmedError):
                self._server.drop()  # as an operator does
            self._store.close()
            self._world.after(self._random.randint(1_000, 1_000_000), self._try, turn)
            return
        ask(partial(self._answered, turn))

    def _answered(self, turn: int, answer: Any) -> None:
        now_us, comes_us = self._world.now_us, self._random.randint(50, 5_000)
        if not self._world.is_healed:
            comes_us += max(0, self.stands_until_us - now_us)
        self._world.after(comes_us, self._go_on, turn, answer)

    # -- a session, step by step -------------------------------------------------------------------------------

    def _session(self) -> Steps:
        """As `raftlog.cluster.sinks.runner.SinkRun`: from the claim of the group on."""
        world = self._world
        if self._group is None:
            self._group = yield from self._moved(ConsumerAction.CLAIM, 0)
        generation = self._group.generation
        position = yield self._stored(partial(self._open, generation))
        if position is None:
            position = StorePosition(first_index("oldest", (yield from self._page(NUMBER_MAX))))
            yield self._stored(partial(self._write, generation, RowChanges(()), None, position))
        follower = LogFollower(position, batch_rows_max=self._sinks.batch_rows_max)
        while True:
            page = yield from self._page(follower.next_index)
            is_due = world.now_us >= self._reported_us + REPORT_US
            for batch in follower.batches(page, map(self._mapping.of_record, page.records), is_due=is_due):
                yield self._stored(partial(self._write, generation, *batch))
            reached = follower.position.next
            if is_due and reached != self._group.next:
                action = ConsumerAction.RESET if reached < self._group.next else ConsumerAction.COMMIT
                self._group = yield from self._moved(action, reached)
                self._reported_us = world.now_us
            if not page.records:
                yield self._idle()

    def _open(self, generation: int) -> StorePosition | None:
        position = self._store.open(SINK, generation)
        if position is not None:
            self._server.youngest = max(self._server.youngest, generation)
        return position

    def _write(self, generation: int, changes: RowChanges, expected: StorePosition | None, next: StorePosition) -> None:
        commits = self._server.commits
        try:
            self._store.write(changes, expected, next)
        finally:
            if self._server.commits > commits:
                self._sinks.judge(generation, next if expected is None else None)

    def _stored(self, work: Callable[[], Any]) -> Ask:
        def ask(done: Callable[[Any], None]) -> None:
            try:
                done(work())
            except StoreError as error:
                done(error)

        return ask

    def _asked(self, send: Callable[[Node, Callable[[Any], None], int], None]) -> Ask:
        """Asks any node. The answer is None if none comes."""

        def ask(done: Callable[[Any], None]) -> None:
            node = self._world.replicas[self._random.choice(list(self._world.replicas))]
            patience_us = PATIENCE_US if node.core is not None else 1
            self._world.after(patience_us, done, None)
            send(node, done, self._world.now_us + PATIENCE_US)

        return ask

    def _moved(self, action: ConsumerAction, next: int) -> Steps:
        generation = 0 if self._group is None else self._group.generation
        command = encode_consumer(ConsumerCommand(action, generation, next))
        block = encode_block([BlockRecord(Operation.CONSUMER, GROUP, command)])
        answer = yield self._asked(lambda node, done, until_us: node.submit(block, 1, 0, 0, until_us, done))
        if isinstance(answer, Applied) and answer.effect.result is not Result.REFUSED:  # access control came between
            found = answer_of(answer.effect, answer.effect.revision, answer.first, answer.index)
            if found.result is Result.COMPARE_FAILED:
                raise StoreFenced(SINK.name)
            return found.consumer
        raise _NodeSilentError

    def _page(self, start: int) -> Steps:
        read: Any = partial(_read, start, self._random.choice((1, 3, 50)))
        for _ in range(NODES_ASKED):
            answer = yield self._asked(lambda node, done, until_us: node.serve(read, done, until_us))
            if isinstance(answer, LogPage):
                return answer
            if isinstance(answer, Problem) and answer.code is Code.COMPACTED:
                raise _LogTrimmedError
            yield self._idle()
        raise _NodeSilentError

    def _idle(self) -> Ask:
        idle_us = self._random.randint(1, IDLE_US)
        return lambda done: self._world.after(idle_us, done, None)


async def _read(start: int, limit: int, server: Replica) -> LogPage:
    """A page as `raftlog.cluster.http.routes.log` gives it."""
    records: list[Record] = []
    next = start
    for entry, effects in await server.read_log(start, limit, 1 << 16) if start <= server.applied else ():
        for row in decode_rows(entry, effects, next):
            if len(records) < limit:
                next = row.index + 1
                records += [record(as_record(row))] if is_user_row(row) else []
    return LogPage("log", tuple(records), next, server.oldest, server.committed, server.last_user_index)
