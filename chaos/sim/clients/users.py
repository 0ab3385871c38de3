"""Simulates users whose permissions change while they write, read and page through the log.

In some worlds an admin sets up access control, and from then on grants and takes away: roles, users, tokens, and access
control itself. Each user asks some node, whose applied state decides as a node's gate does, and its request arrives a
little later. So permissions change between the decision and the request's place in the log. Now and then the node
forgets to ask. `raftlog.chaos.sim.invariants.clients.permitted` judges every applied write, read and shown record.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any, Final

from raftlog.chaos.sim.ground.failure import Failure
from raftlog.chaos.sim.ground.requests import requests_of
from raftlog.chaos.sim.replica.answers import Answer
from raftlog.chaos.sim.replica.serving import ADMIN
from raftlog.chaos.sim.world.world import World
from raftlog.cluster.api.errors import Problem
from raftlog.cluster.protocol.request import RequestResult
from raftlog.cluster.records.rows import decode_rows, is_visible
from raftlog.cluster.replica.replica import Replica
from raftlog.raft.codec.block import BlockRecord, decode_records, encode_block
from raftlog.raft.types import Entry
from raftlog.statemachine.access import needs
from raftlog.statemachine.access.admission import encode_admission
from raftlog.statemachine.access.commands import AccessAction, AccessCommand, encode_access
from raftlog.statemachine.access.grants import Verb, parse_grant
from raftlog.statemachine.access.table import AccessTable
from raftlog.statemachine.answers import Reason, decode_answer
from raftlog.statemachine.commands import (
    GET_OPERATION,
    Command,
    Compare,
    CompareOperator,
    CompareTarget,
    Operation,
    Result,
    Txn,
    TxnOperation,
)
from raftlog.statemachine.consumers import ConsumerAction, ConsumerCommand, encode_consumer
from raftlog.statemachine.effects import Effects
from raftlog.statemachine.txn import encode_txn

PROPERTY: Final = "no write is applied with a token that was revoked before"
WORLDS: Final = 4
"""One world of so many has users."""
USERS: Final = ("u1", "u2", "u3")
KEYS: Final = (b"~1", b"~1/x", b"~1/z", b"~2", b"~2/x", b"~3")
"""Some are the end of a prefix, or just before it."""
GRANTS: Final = tuple(
    map(
        parse_grant,
        (
            "read on keys:~1*",
            "read on keys:~2*",
            "write on keys:~1*",
            "write on keys:~1/*",
            "write on keys:~1/x..~3",
            "write on keys:~2",
            "append on log",
            "append on keys:~1*",
            "read on log",
            "write on groups:~g*",
            "read on keys:*",
            "operate on cluster",
        ),
    )
)
CHANGE_US: Final = 700_000
ASK_US: Final = 120_000
"""How often the admin changes something, and how often a user asks for something, on average, in microseconds."""
TRAVEL_US: Final = 250_000
"""Longest time between a node's decision and the request's arrival in its queue, in microseconds."""
TTL_MS: Final = 30_000


class Users:
    """The admin and the users of one world; none of them, in most worlds."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = random = Random(f"{world.seed} users")
        self.tokens: dict[str, tuple[str, ...]] = {}  # of a user: all that it ever got
        self.sessions: list[int] = []  # of all users
        self._count = 0
        self._tokens_sent: dict[tuple[bytes, bytes], str] = {}  # value and admission -> the token
        if world.yours is None and random.randrange(WORLDS) == 0:
            world.after(random.randint(100_000, 4_000_000), self._change)
            for name in USERS:
                User(self, name, Random(f"{world.seed} user {name}")).later()

    def applied(self, entry: Entry, effects: Effects) -> None:
        """A node applied this entry. Raises Failure."""
        for index, block, effect in requests_of(entry, effects) if self._tokens_sent else ():
            if effect is not None and effect.result is Result.APPLIED and block.admission:
                token = self._tokens_sent.get((next(decode_records(block)).value or b"", block.admission), "")
                permitted = self.world.witness.states.permitted
                gone = permitted.gone.get(token, index)
                if gone < index and permitted.at(index).is_on:
                    raise Failure(PROPERTY, f"the write at {index}: {token} was revoked at {gone}")

    def fresh(self) -> bytes:
        self._count += 1
        return b"~%d" % self._count

    def remember(self, record: BlockRecord, admission: bytes, token: str) -> None:
        """Remembers the token of a write; two tokens under one admission count as one."""
        sent = (record.value or b"", admission)
        self._tokens_sent[sent] = token if self._tokens_sent.get(sent, token) == token else ""

    # -- the admin ---------------------------------------------------------------------------------------------

    def _change(self) -> None:
        world, random = self.world, self.random
        if world.is_healed:
            return
        world.after(random.randint(1, 2 * CHANGE_US), self._change)
        replica = world.leading() or random.choice(list(world.replicas.values()))
        if replica.core is None:
            return
        command = self._command(replica.machine.access)
        record = BlockRecord(Operation.ACCESS, None, encode_access(command))
        replica.ask([record], partial(self._changed, command))

    def _changed(self, command: AccessCommand, answer: Answer) -> None:
        if isinstance(answer, RequestResult) and answer.effect.result is Result.APPLIED:
            self.world.count("permissions changed")
            self.world.sometimes("permissions changed while users wrote")
        if command.token:
            self.tokens[command.name] = (*self.tokens.get(command.name, ()), command.token)

    def _command(self, access: AccessTable) -> AccessCommand:
        """A change that the admin wants; some are refused."""
        random = self.random
        if not access.revision:
            return AccessCommand(AccessAction.INIT, ADMIN)
        if not access.is_on:
            return AccessCommand(AccessAction.ENABLE)
        name = random.choice(USERS)
        what = random.randrange(20)
        if what == 0:
            return AccessCommand(AccessAction.DISABLE)
        if what == 1:
            return AccessCommand(AccessAction.DELETE_USER, name)
        if what < 4:
            return AccessCommand(AccessAction.SET_USER, name, roles=(f"of-{name}",), is_blocked=True)
        if what < 6 and access.tokens:
            return AccessCommand(AccessAction.DELETE_TOKEN, token=random.choice(sorted(access.tokens)))
        if what < 9 and name in access.users:
            self._count += 1
            return AccessCommand(AccessAction.ADD_TOKEN, name, token=f"t{self._count}", token_hash=bytes(32))
        if what < 13 and f"of-{name}" in access.roles:
            roles = (f"of-{name}", "reader") if random.randrange(4) == 0 else (f"of-{name}",)
            return AccessCommand(AccessAction.SET_USER, name, roles=roles)
        grants = tuple(random.sample(GRANTS, random.randrange(len(GRANTS))))
        return AccessCommand(AccessAction.SET_ROLE, f"of-{name}", grants=grants)


class User:
    """One user, with a certificate of its name and all tokens that it was given."""

    def __init__(self, users: Users, name: str, random: Random) -> None:
        self.users, self.name, self.random = users, name, random
        self.sessions: list[int] = []  # that it opened
        self.sent: list[tuple[tuple[BlockRecord, ...], int, int]] = []  # records, session and sequence
        self.sequence = 0

    def later(self) -> None:
        """Asks again after a while, as long as there is trouble."""
        if not self.users.world.is_healed:
            self.users.world.after(self.random.randint(1, 2 * ASK_US), self._ask)

    def _ask(self) -> None:
        self.later()
        world, random = self.users.world, self.random
        replica = world.replicas[random.choice(list(world.replicas))]
        if replica.core is None or not replica.machine.access.is_on:
            return
        table = replica.machine.access
        token = random.choice((*self.users.tokens.get(self.name, ()), ""))
        if token and (token not in table.tokens or table.tokens[token].user != self.name):
            world.count("users refused: token")
            return
        admission = encode_admission(table.admission(self.name))
        what = random.randrange(10)
        if what < 2:
            self._read(replica, admission, random.choice(KEYS))
        elif what < 4:
            self._page(replica, admission)
        else:
            self._write(replica, table, admission, token)

    # -- writes ------------------------------------------------------------------------------------------------

    def _write(self, replica: Any, table: AccessTable, admission: bytes, token: str) -> None:
        world, random = self.users.world, self.random
        session = sequence = 0
        if self.sent and random.randrange(6) == 0:  # a copy, by any node, under the permissions of now
            records, session, sequence = random.choice(self.sent)
        else:
            records = self._records()
            if self.sessions and records[0].operation < Operation.COMPACT and random.getrandbits(1):
                is_own = random.randrange(5) > 0
                session = random.choice(self.sessions if is_own else self.users.sessions)
                sequence = self.sequence + 1
                self.sequence = sequence
                self.sent.append((records, session, sequence))
        permissions = table.principal(admission).permissions
        commands = [Command(*record) for record in records]
        lacks = permissions is None or needs.missing(permissions, commands) is not None
        if lacks and random.randrange(8):
            world.count("users refused: at the node")
            return
        is_plain = (
            permissions is not None
            and permissions.allows(needs.APPEND_LOG)
            and all(record.operation == Operation.APPEND for record in records)
        )
        block = encode_block(
            records, admission=admission, session=session, sequence=sequence, settled=bool(session), plain=is_plain
        )
        self.users.remember(records[0], admission, token)
        life = replica.life

        def arrive() -> None:
            if replica.life == life:
                replica.submit(
                    block,
                    len(records),
                    session,
                    sequence,
                    world.now_us + world.patience_us,
                    partial(self._answered, records),
                    is_admitted=True,
                )

        world.after(random.randint(1, TRAVEL_US), arrive)

    def _answered(self, records: tuple[BlockRecord, ...], answer: Answer) -> None:
        world = self.users.world
        if not isinstance(answer, RequestResult):
            world.count("users' writes unanswered")
            return
        effect = answer.effect
        if effect.answer and decode_answer(effect.answer).reason is Reason.NOT_PERMITTED:
            world.count("users' writes refused at their place in the log")
            world.sometimes("a permission was lost on the way")
        elif effect.result is Result.APPLIED:
            world.count("users' writes applied")
            if records[0].operation == Operation.SESSION_OPEN:
                self.sessions.append(answer.last)
                self.users.sessions.append(answer.last)

    def _records(self) -> tuple[BlockRecord, ...]:
        random = self.random
        key, value = random.choice(KEYS), self.users.fresh()
        match random.randrange(12):
            case 0 | 1:
                return (BlockRecord(Operation.APPEND, None, value),) * random.randint(1, 2)
            case 2:
                return tuple(BlockRecord(Operation.APPEND, random.choice(KEYS), value) for _ in range(2))
            case 3:
                return (BlockRecord(Operation.DELETE_RANGE, key, random.choice((*KEYS, b"~4", b""))),)
            case 4 | 5:
                other = random.choice(KEYS)
                compare = Compare(other, CompareTarget.VERSION, CompareOperator.GREATER, 0)
                steps = (TxnOperation(Operation.PUT, key, value), TxnOperation(GET_OPERATION, other))
                txn = Txn((compare,), steps, (TxnOperation(Operation.DELETE, random.choice(KEYS)),))
                return (BlockRecord(Operation.TXN, None, encode_txn(txn)),)
            case 6:
                claim = encode_consumer(ConsumerCommand(ConsumerAction.CLAIM, 0, 0, value))
                return (BlockRecord(Operation.CONSUMER, random.choice((b"~g", b"~h")), claim),)
            case 7:
                return (BlockRecord(Operation.SESSION_OPEN, argument=TTL_MS),)
            case _:
                return (BlockRecord(Operation.PUT, key, value),)

    # -- reads -------------------------------------------------------------------------------------------------

    def _read(self, replica: Any, admission: bytes, key: bytes) -> None:
        """A linearizable read: the node decides as of the index that it answers from, by the admission of the start."""
        world, life = self.users.world, replica.life

        def decided(index: int | Problem) -> None:
            if isinstance(index, Problem) or not _is_sound(replica, life):
                return
            machine = replica.machine
            decision = machine.access.decide(admission, needs.key_grant(Verb.READ, key))
            if machine.access.is_on:
                world.count(f"users' reads {'answered' if decision.is_allowed else 'refused'}")
            world.witness.states.permitted.read(
                replica.node, machine.applied_index, admission, key, is_allowed=decision.is_allowed
            )

        replica.read_barrier(decided, world.now_us + world.patience_us)

    def _page(self, replica: Any, admission: bytes) -> None:
        """A page of the log, from a random index on."""
        world, life = self.users.world, replica.life
        start = self.random.randint(max(1, world.acknowledged - 60), world.acknowledged + 1)

        def read(page: Any) -> None:
            if isinstance(page, Problem) or not _is_sound(replica, life):
                return
            machine = replica.machine
            permissions = machine.access.principal(admission).permissions
            if not machine.access.is_on or permissions is None or not permissions.allows(needs.READ_LOG):
                return
            for entry, effects in page:
                for row in decode_rows(entry, effects):
                    self._shown(replica, admission, entry, row, is_shown=is_visible(row, permissions))
            world.count("users' pages of the log")

        replica.serve(partial(_read_log, start), read, world.now_us + world.patience_us)

    def _shown(self, replica: Any, admission: bytes, entry: Entry, row: Any, *, is_shown: bool) -> None:
        if row.operation is not None:
            record = BlockRecord(Operation[row.operation.upper()], row.key, row.value)
            self.users.world.witness.states.permitted.shown(
                replica.node, replica.machine.applied_index, admission, record, is_shown=is_shown
            )


def _is_sound(replica: Any, life: int) -> bool:
    """Whether that process still runs, with a state that no fault has damaged: of such a state nothing is expected but
    that it is found out."""
    return replica.life == life and replica.core is not None and not replica.corrupted


async def _read_log(start: int, server: Replica) -> list[tuple[Entry, Effects]]:
    return await server.read_log(start, 60, 1 << 16)
