"""Simulates sinks: two runners follow the log of the nodes into one store, and every commit there is judged.

In some worlds a writer changes rows, and two runners of one sink take turns. They are killed, stand still and write
late; their store loses connections and answers, and is put back to a copy. In half of these worlds a runner may rebuild
the store first, and a sink of keys begins with their state, whose history is compacted. They use the product's
decisions, mapping, batches and writer. After each commit the rows of the store, also of a half loaded one and of one
that is filled beside it, are compared with a naive fold of the applied log up to the store's position. A healed world
must bring the store to the end of the log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, Final

from raftlog.chaos.sim.clients.sink_pages import keys_page, log_page
from raftlog.chaos.sim.clients.sink_store import SinkConnection, SinkServer
from raftlog.chaos.sim.ground.failure import Failure
from raftlog.chaos.sim.ground.requests import requests_of
from raftlog.chaos.sim.replica.node import Node
from raftlog.chaos.sim.world.world import World
from raftlog.cluster.api.errors import Code, Problem
from raftlog.cluster.api.values import NUMBER_MAX
from raftlog.cluster.client.answers import LogPage, Page
from raftlog.cluster.protocol.request import RequestResult
from raftlog.cluster.sinks.changes import RowChanges, StorePosition, StoreRow
from raftlog.cluster.sinks.following import LogFollower, StateLoad, first_index
from raftlog.cluster.sinks.mapping import RowMapping, SinkSource
from raftlog.cluster.sinks.store import (
    BESIDE,
    PositionMoved,
    SinkIdentity,
    StoreError,
    StoreFenced,
    StoreUnavailable,
)
from raftlog.cluster.sinks.stores.sql import SqlStore
from raftlog.raft.codec.block import BlockRecord, decode_records
from raftlog.raft.types import Entry
from raftlog.statemachine.answers import answer_of
from raftlog.statemachine.commands import ConsumerGroup, Operation, Result, Txn, TxnOperation
from raftlog.statemachine.consumers import ConsumerAction, ConsumerCommand, encode_consumer
from raftlog.statemachine.effects import Effects
from raftlog.statemachine.txn import encode_txn

EQUAL: Final = "a sink's store equals the log up to its position"
FENCED: Final = "a sink's runner writes nothing after a younger one has opened the store"
ARRIVES: Final = "a sink's store reaches the end of a healed log"
BACK: Final = "a rebuild never sets a sink's store back"
WORLDS: Final = 4
"""One world of so many has a sink."""

REBUILD_WORLDS: Final = 2
"""One of so many of these worlds has rebuilds, and loads the state of its keys."""

SINK: Final = SinkIdentity("copy", "log", "mapping")
TABLE: Final = "copied"
PREFIX: Final = b"row/"
PREFIX_END: Final = b"row0"
CAPTURED: Final = "public.rows"
ROWS: Final = 5
WRITE_US: Final = 250_000
TROUBLE_US: Final = 3_000_000
"""How often the writer writes, and a fault hits runners or store, on average, in microseconds."""

PATIENCE_US: Final = 2_000_000
AWAY_US: Final = 15_000_000
"""Longest time that a runner is down or stands still, in microseconds."""

IDLE_US: Final = 300_000
LOAD_US: Final = 1_000_000
"""Longest time between two pages of a load, before its history ends, and before an exchange, in microseconds."""

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
        self._turns = Random(f"{world.seed} sink rebuilds")
        has_rebuilds = self._turns.randrange(REBUILD_WORLDS) == 0
        self.loads = has_rebuilds and not self.is_captured
        """Whether the sink begins with the state of its keys."""
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
        if has_rebuilds:
            world.after(self._turns.randint(1, 2 * TROUBLE_US), self._operate)

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

    def _operate(self) -> None:
        """A rebuild by one of the runners, and the end of the history that its load may need."""
        world, random = self.world, self._turns
        if world.is_healed or not world.swarm.faults:
            return
        world.after(random.randint(1, 2 * TROUBLE_US), self._operate)
        runner, node, later_us = (
            random.choice(self.runners),
            random.choice([*world.replicas]),
            random.randint(1, LOAD_US),
        )
        if (self.loads or self.oldest == 1) and random.getrandbits(1) and world.fault("rebuild sink", ()):
            runner.start(rebuilds=True)
        if self.loads:
            world.after(later_us, self._compact, world.replicas[node])

    def _compact(self, node: Node) -> None:
        if node.core is not None:
            self._submit(node, [BlockRecord(Operation.COMPACT, argument=node.machine.revision)])

    def _write(self) -> None:
        world, random = self.world, self.random
        world.after(random.randint(1, 2 * WRITE_US), self._write)
        self._count += 1
        records = self._captured() if self.is_captured else [self._keys()]
        self._submit(world.replicas[random.choice(list(world.replicas))], records)

    def _submit(self, node: Node, records: list[BlockRecord]) -> None:
        node.ask(records, for_us=PATIENCE_US, plain=self.is_captured)

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
        for last, block, effect in requests_of(entry, effects):
            if effect is None or effect.result is Result.APPLIED:
                for place, each in enumerate(decode_records(block), last - block.count + 1):
                    if (meaning := self._meanings.get(each.value or b"")) is not None:
                        self._changes.append((place, *meaning))

    def judge(self, target: SinkTarget, generation: int, begun: StorePosition | None) -> None:
        """A runner of that generation committed, and wrote a first position if `begun` is one. Raises Failure."""
        server, name = self.server, target.name
        assert server is not None
        if generation < server.youngest.get(name, 0):
            raise Failure(FENCED, f"generation {generation} wrote, {server.youngest[name]} has opened the store")
        if begun is not None:
            server.begins[name] = 0 if self.loads else begun.next
        if not self.loads and server.begins[name] > self.oldest:
            raise Failure(EQUAL, f"it begins at {server.begins[name]}, and the log at {self.oldest}")
        position, is_whole = server.position(name) or StorePosition(0), True
        rows: Rows = {}
        for index, changes, is_last in self._changes:
            if server.begins[name] <= index < position.next:
                rows |= changes
                is_whole = is_last
        expected = {key: row for key, row in rows.items() if row is not None and _is_loaded(key, position)}
        if (found := server.rows(target.table)) != expected or not is_whole:
            raise Failure(EQUAL, f"{name}: at {position} the log has {expected}, the store {found}")
        self.world.count(f"commits of a {'rebuild' if target.name.endswith(BESIDE) else 'sink'} judged")
        if position.loaded is not None:
            self.world.sometimes("a sink's store was half loaded")

    def arrive(self) -> None:
        """Waits until the store of a healed world has the whole log. Raises NoProgress."""
        world, server = self.world, self.server
        if server is None or not self._changes:
            return
        last = self._changes[-1][0]
        reached = partial(server.next_index, SINK.name)
        world.wait(ARRIVES, ARRIVES_US, lambda: reached() > last, lambda: f"it is at {reached()}, the log at {last}")


def _is_loaded(key: int, position: StorePosition) -> bool:
    """Whether a load, which may not have ended, has read the key."""
    return position.loaded is None or (PREFIX + b"%d" % key).hex() <= position.loaded


class SinkTarget:
    """What a runner fills: the store of the sink, or the one of a rebuild."""

    def __init__(self, store: SqlStore, table: str, name: str) -> None:
        self.store, self.table, self.name = store, table, name
        self.group: ConsumerGroup | None = None


class Runner:
    """One process after the other that runs the sink, after a rebuild perhaps."""

    def __init__(self, sinks: Sinks, server: SinkServer, random: Random) -> None:
        self.stands_until_us = 0
        self.is_over = True  # fenced, or not started yet
        self._sinks, self._server, self._random = sinks, server, random
        self._world = sinks.world
        self._mapping = sinks.mapping()
        store = SqlStore(SinkConnection(server), TABLE, self._mapping)
        self._main = SinkTarget(store, TABLE, SINK.name)
        self._beside = SinkTarget(store.beside(), f"{TABLE}__rebuild", SINK.name + BESIDE)
        self._rebuilds = False
        self._turn = 0  # what belongs to an earlier one is void
        self._reported_us = 0
        self._steps = self._session()

    def kill(self) -> None:
        """SIGKILL."""
        self._turn += 1
        self._main.store.close()

    def start(self, *, rebuilds: bool = False) -> None:
        """A new process, in the place of one that may run still."""
        self.kill()
        self._main.group = self._beside.group = None
        self._rebuilds, self.is_over = rebuilds, False
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
            self._main.store.close()
            self.is_over = True
            if all(each.is_over for each in self._sinks.runners):  # by the late claim of a process that was killed
                self._world.sometimes("a sink without a runner got one again")
                self._world.after(self._random.randint(1_000, 1_000_000), self.start)
            return
        except (StoreUnavailable, PositionMoved, _NodeSilentError, _LogTrimmedError) as error:
            self._world.count(f"tries of a sink ended by {type(error).__name__}")
            if isinstance(error, _LogTrimmedError):
                self._server.drop()  # as an operator does
            self._main.store.close()
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
        """A run, which never ends, or first a rebuild."""
        if self._rebuilds:
            yield from self._rebuild()
        yield from self._run(self._main)

    def _rebuild(self) -> Steps:
        """As `raftlog.cluster.sinks.sinks.rebuild`."""
        yield from self._run(self._beside, once=True)
        yield from self._claimed(self._main)
        while self._rebuilds:
            yield from self._run(self._beside, once=True)
            yield self._idle(LOAD_US)
            with suppress(StoreError):  # the old runner has written meanwhile, or the store is away, or put back
                yield self._stored(self._exchange)

    def _run(self, target: SinkTarget, *, once: bool = False) -> Steps:
        """As `raftlog.cluster.sinks.runner.SinkRun`: from the claim of the group on."""
        world = self._world
        until = (yield from self._page(NUMBER_MAX)).last_user_index if once else None
        yield from self._claimed(target)
        position = yield self._stored(partial(self._open, target))
        if position is None or position.loaded is not None:
            position = yield from self._begun(target, position)
        follower = LogFollower(position, until, batch_rows_max=self._sinks.batch_rows_max)
        while not follower.is_done:
            page = yield from self._page(follower.next_index)
            is_due = world.now_us >= self._reported_us + REPORT_US
            for batch in follower.batches(page, map(self._mapping.of_record, page.records), is_due=is_due):
                yield self._stored(partial(self._write, target, *batch))
            reached = follower.position.next
            assert target.group is not None
            if is_due and reached != target.group.next:
                action = ConsumerAction.RESET if reached < target.group.next else ConsumerAction.COMMIT
                target.group = yield from self._moved(target, action, reached)
                self._reported_us = world.now_us
            if not page.records and not follower.is_done:
                yield self._idle()

    def _claimed(self, target: SinkTarget) -> Steps:
        """Claims the group once for all tries."""
        if target.group is None:
            target.group = yield from self._moved(target, ConsumerAction.CLAIM, 0)

    def _begun(self, target: SinkTarget, position: StorePosition | None) -> Steps:
        """As `SinkRun._begun`."""
        if not self._sinks.loads:
            position = StorePosition(first_index("oldest", (yield from self._page(NUMBER_MAX))))
            yield self._stored(partial(self._write, target, RowChanges(()), None, position))
            return position
        load = StateLoad(position, PREFIX)
        while not load.is_done:
            page = yield from self._state(load.start, load.revision)
            if page is None:
                self._world.sometimes("a sink's load began again")
                yield self._stored(partial(self._write, target, *load.begun_again((yield from self._state(PREFIX)))))
                continue
            rows = [self._mapping.of_item(item, load.index(page)) for item in page.items]
            yield self._stored(partial(self._write, target, *load.batch(page, rows)))
            yield self._idle(LOAD_US)
        return load.position

    def _open(self, target: SinkTarget) -> StorePosition | None:
        assert target.group is not None
        generation = target.group.generation
        position = target.store.open(SINK, generation)
        if position is not None:
            self._server.youngest[target.name] = max(self._server.youngest.get(target.name, 0), generation)
        return position

    def _write(
        self, target: SinkTarget, changes: RowChanges, expected: StorePosition | None, next: StorePosition
    ) -> None:
        assert target.group is not None
        commits = self._server.commits
        try:
            target.store.write(changes, expected, next)
        finally:
            if self._server.commits > commits:
                self._sinks.judge(target, target.group.generation, next if expected is None else None)

    def _exchange(self) -> None:
        server, main, beside = self._server, self._main, self._beside
        assert main.group is not None
        commits, before, generation = server.commits, server.next_index(main.name), main.group.generation
        try:
            main.store.exchange(SINK, generation)
            self._rebuilds = False
        finally:
            if server.commits > commits:
                server.youngest[main.name] = generation
                server.begins[main.name] = server.begins.pop(beside.name, 0)  # a restored store may have no position
                server.youngest.pop(beside.name, None)
                if server.next_index(main.name) < before:
                    raise Failure(BACK, f"from {before} to {server.next_index(main.name)}")
                self._sinks.judge(main, generation, None)

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

    def _moved(self, target: SinkTarget, action: ConsumerAction, next: int) -> Steps:
        generation = 0 if target.group is None else target.group.generation
        command = encode_consumer(ConsumerCommand(action, generation, next))
        record = BlockRecord(Operation.CONSUMER, f"sink/{target.name}".encode(), command)
        answer = yield self._asked(lambda node, done, _: node.ask([record], done, for_us=PATIENCE_US))
        if (
            isinstance(answer, RequestResult) and answer.effect.result is not Result.REFUSED
        ):  # access control came between
            found = answer_of(answer.effect, answer.effect.revision, answer.first, answer.last)
            if found.result is Result.COMPARE_FAILED:
                raise StoreFenced(SINK.name)
            return found.consumer
        raise _NodeSilentError

    def _page(self, start: int) -> Steps:
        read = partial(log_page, start, self._random.choice((1, 3, 50)))
        page = yield from self._served(lambda node, done, until_us: node.serve(read, done, until_us))
        if page is None:
            raise _LogTrimmedError
        return page

    def _state(self, start: bytes, at: int | None = None) -> Steps:
        """A page of the keys as of a revision; None if it is compacted."""
        limit = self._random.choice((1, 1, 3))
        return self._served(
            lambda node, done, until_us: node.serve(
                partial(keys_page, start, PREFIX_END, limit, at, node.seconds(until_us)), done, until_us
            )
        )

    def _served(self, send: Callable[[Node, Callable[[Any], None], int], None]) -> Steps:
        """A page of some node; None if that is trimmed or compacted. Raises _NodeSilentError."""
        for _ in range(NODES_ASKED):
            answer = yield self._asked(send)
            if isinstance(answer, LogPage | Page):
                return answer
            if isinstance(answer, Problem) and answer.code is Code.COMPACTED:
                return None
            yield self._idle()
        raise _NodeSilentError

    def _idle(self, most_us: int = IDLE_US) -> Ask:
        idle_us = self._random.randint(1, most_us)
        return lambda done: self._world.after(idle_us, done, None)
