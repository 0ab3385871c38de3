"""No message ends a node: every kind, with extreme fields, from every kind of sender, to nodes in every state."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from raftlog.raft.codec.checks import INDEX_MAX, crc32c
from raftlog.raft.codec.configuration import encode_configuration
from raftlog.raft.codec.entry import seal_entry
from raftlog.raft.codec.frame import FrameDecoder
from raftlog.raft.codec.message import decode_message, encode_message
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.invariants import check_log, check_state, check_step, observe
from raftlog.raft.consensus.roles import Leader
from raftlog.raft.consensus.state import INDEX_FAR, TERM_JUMP_MAX
from raftlog.raft.events import MessageIgnored
from raftlog.raft.hello import Start
from raftlog.raft.messages import (
    AppendEntries,
    AppendEntriesReply,
    InstallSnapshot,
    InstallSnapshotReply,
    Message,
    Recall,
    RecallReply,
    RequestVote,
    RequestVoteReply,
    TimeoutNow,
)
from raftlog.raft.options import Options
from raftlog.raft.types import Entry, EntryKind, Mark
from tests.raft.lab import append, append_entries, at, chunk, configuration, drain, extend, lead, make_core

LEARNER, OUT, STRANGER = 4, 5, 9
DISKS = {node: f"{node:032x}" for node in (1, 2, 3, LEARNER, OUT, STRANGER)}
MEMBERS = replace(configuration(4, learners=[LEARNER]), removed=((OUT, DISKS[OUT]),))
RUN = 0xABC
OPTIONS = Options(tail_entries_max=6, append_entries_max=4, snapshot_chunk_bytes=4)


class Forger:
    """Makes messages for one core, and carries out what the core wants of its disk."""

    def __init__(self, seed: int, core: RaftCore) -> None:
        self.random, self.core, self.now_ms = Random(seed), core, 1_000
        self.known: dict[int, int] = {}  # header CRC of each committed entry in memory
        self.seen = observe(core.state)
        self.is_calm = seed % 2 == 0

    def number(self) -> int:
        """An index or a term: extreme, or around a place of the log."""
        state, random = self.core.state, self.random
        log = state.log
        near = random.choice(
            [log.first, log.snapshot.index, log.applied, log.committed, log.persisted, log.last.index, state.term]
        )
        value = random.choice([0, 1, INDEX_MAX, INDEX_MAX - 1, *[near + random.randint(-3, 3)] * 6])
        return min(max(value, 0), INDEX_MAX)

    def flip(self) -> bool:
        """A coin."""
        return self.random.randrange(2) == 0

    def term(self) -> int:
        """Mostly one that is heard."""
        term = self.core.state.term
        if self.is_calm and self.random.randrange(10):  # else no role lasts
            return term
        return self.random.choice([term, term, term, term + 1, max(term - 1, 0), self.number()])

    def data(self) -> bytes:
        """Of a configuration entry: another configuration, one of a later version, or none."""
        random = self.random
        made = [
            Configuration(),
            configuration(random.randint(1, 5)),
            replace(MEMBERS, version=99),
            replace(MEMBERS, voters=(3,), outgoing=(1, 2), learners=()),
            Configuration((Member(INDEX_MAX, "", "", ""),), (INDEX_MAX,)),
        ]
        return random.choice(
            [encode_configuration(random.choice(made)), b"", random.randbytes(9), b"\x97" + b"\xc0" * 7]
        )

    def entries(self, before: int, term: int) -> tuple[Entry, ...]:
        """A chain after `before`, which may not be the end of an entry here: with the true header there, or not."""
        random, log = self.random, self.core.state.log
        mark = log.mark_at(before) if random.randrange(4) else None
        previous = mark or Mark(before, min(term, log.term_at(before) or 0), random.getrandbits(32))
        if random.randrange(8) == 0:
            previous = replace(previous, index=self.number())
        made: list[Entry] = []
        for _ in range(random.choice([0, 0, 1, 2, 5])):
            count = random.choice([1, 1, 2, 3, 2**32 - 1])
            if previous.index + count > INDEX_MAX:
                break
            kind = random.choice([EntryKind.COMMANDS, EntryKind.COMMANDS, *EntryKind])
            data = self.data() if kind is EntryKind.CONFIGURATION else b"x"
            at_term = min(max(previous.term, random.choice([term, previous.term, self.number()])), INDEX_MAX)
            made.append(seal_entry(previous, term=at_term, kind=kind, count=count, time_ms=0, clock_ms=0, data=data))
            previous = made[-1].mark
        own = [entry for entry in log.tail.entries if entry.before >= before]
        return tuple(own[: random.randint(0, 3)]) if random.randrange(5) == 0 else tuple(made)

    def message(self) -> tuple[Message, str]:
        """A message, and the disk that it comes from."""
        random, number, flip = self.random, self.number, self.flip
        sender = random.choice([1, 2, 2, 2, 3, 3, LEARNER, OUT, STRANGER, 0, INDEX_MAX])
        head: dict[str, Any] = {
            "sender": sender,
            "to": random.choice([1] * 20 + [0, 7]),
            "term": self.term(),
            "shard": random.choice([0] * 20 + [7]),
        }
        log = self.core.state.log
        prev, data, total = (
            number(),
            random.randbytes(random.choice([0, 1, 4, 9])),
            random.choice([0, 4, 8, 9, number()]),
        )
        prev_term = random.choice([log.term_at(prev) or 0, self.term()])
        offset = random.choice([0, 4, number(), (self.core.state.receiving and self.core.state.receiving.ahead) or 0])
        made: list[Callable[[], Message]] = [
            lambda: AppendEntries(
                prev_index=prev,
                prev_term=prev_term,
                commit=number(),
                round=number(),
                entries=self.entries(prev, head["term"]),
                **head,
            ),
            lambda: AppendEntriesReply(
                success=flip(),
                match=number(),
                prev_index=number(),
                round=random.choice([0, 1, 2, number()]),
                hint_index=number(),
                hint_term=self.term(),
                **head,
            ),
            lambda: RequestVote(
                last_index=number(), last_term=self.term(), pre=flip(), transfer=flip(), link_closed=flip(), **head
            ),
            lambda: RequestVoteReply(request_term=self.term(), granted=flip(), pre=flip(), **head),
            lambda: InstallSnapshot(
                snapshot_index=number(),
                snapshot_term=random.choice([self.term(), 1]),
                offset=offset,
                total=total,
                crc=random.choice([crc32c(data)] * 3 + [0]),
                done=random.choice([offset + len(data) == total, flip()]),
                data=data,
                **head,
            ),
            lambda: InstallSnapshotReply(
                snapshot_index=random.choice([number(), log.snapshot.index]),
                snapshot_term=random.choice([self.term(), log.snapshot.term]),
                offset=number(),
                accepted=flip(),
                **head,
            ),
            lambda: TimeoutNow(last_index=number(), **head),
            lambda: Recall(run=random.choice([RUN + 1, number()]), floor=number(), **head),
            lambda: RecallReply(
                run=random.choice([RUN, RUN, number()]),
                promised_term=self.term(),
                acked_term=self.term(),
                acked_index=number(),
                led_term=self.term(),
                led_index=number(),
                healed_index=number(),
                is_alone=flip(),
                is_lost=flip(),
                **head,
            ),
        ]
        disk = random.choice([DISKS.get(sender, "")] * 5 + ["", "another", DISKS[OUT]])
        return random.choice([*made, made[0], made[0], made[4]])(), disk

    def carry_out(self) -> None:
        """The Readies: a disk that is slow, a state machine that is, snapshots that are none."""
        core, random = self.core, self.random
        while (ready := core.ready()) is not None:
            if ready.entries:
                if random.randrange(3):
                    core.persisted(ready.entries[-1].term, ready.entries[-1].index, at(self.now_ms))
            if ready.committed and random.randrange(4):
                core.applied(ready.committed[-1].index)
            for fetch in ready.fetches:
                core.fetched(fetch, (), at(self.now_ms))
            for wanted in ready.snapshot_fetches:
                core.snapshot_chunk(wanted, 8, b"8 bytes!"[wanted.offset : wanted.offset + 4], at(self.now_ms))
            for write in ready.snapshot_writes:
                core.snapshot_written(write, at(self.now_ms))
            if core.state.is_installing:
                self.install(core)

    def install(self, core: RaftCore) -> None:
        """What arrived is a snapshot, or is not."""
        receiving = core.state.receiving
        assert receiving is not None
        if receiving.index <= core.state.log.committed or self.random.randrange(2):
            core.snapshot_failed(at(self.now_ms))
        else:
            core.installed(Mark(receiving.index, receiving.term), MEMBERS, 1, at(self.now_ms))

    def check(self) -> None:
        """The invariants of the node; and each committed entry is the one that was committed."""
        state = self.core.state
        check_state(state)
        check_log(state.log)
        after = observe(state)
        check_step(1, self.seen, after)
        self.seen = after
        for entry in state.log.tail.entries:
            if entry.index <= state.log.committed:
                assert self.known.setdefault(entry.index, entry.mark.header_crc) == entry.mark.header_crc

    def go_on(self) -> None:
        """One step: a message as it comes off the wire, or time passes, or a link opens or closes."""
        random, core = self.random, self.core
        match random.randrange(12):
            case 0:
                self.now_ms += random.choice([1, 60, 400])
                core.tick(at(self.now_ms))
            case 1:
                peer = random.choice([2, 3, LEARNER, OUT, STRANGER])
                start = Start(
                    run=RUN + 1, last_index=self.number(), last_term=0, term=self.number(), floor=self.number()
                )
                core.link_opened(peer, random.choice([DISKS[peer], "another"]), 4, at(self.now_ms), start)
            case 2:
                core.link_closed(random.choice([2, 3, LEARNER, OUT, STRANGER]), at(self.now_ms))
            case 3 if isinstance(core.state.role, Leader):
                core.propose(EntryKind.COMMANDS, random.choice([1, 3]), b"x", at(self.now_ms))
            case _:
                message, disk = self.message()
                (frame,) = FrameDecoder().feed(encode_message(message))
                try:
                    message = decode_message(frame)
                except ValueError:  # as its connection would be closed
                    return
                core.step(message, at(self.now_ms), disk)
        self.check()
        if random.randrange(4):
            self.carry_out()
            self.check()


def made(kind: str) -> RaftCore:
    """Node 1 with eight entries, some of them of several records."""
    floor = 9 if kind == "healing" else 0
    core = make_core(
        1,
        4,
        1,
        (1, 3),
        1,
        (2, 2),
        2,
        2,
        members=MEMBERS,
        options=OPTIONS,
        commit=1 if kind == "fresh" else 5,
    )
    core.state.recall.floor, core.state.recall.run, core.state.incarnation = (
        floor,
        RUN * (kind in {"healing", "asking"}),
        DISKS[1],
    )
    if kind == "learner":
        core.state.configurations = [(1, replace(MEMBERS, voters=(2, 3), learners=(1, LEARNER)))]
    if kind == "leader":
        lead(core)
    elif kind == "follower":
        append(core, prev=(core.state.log.last.index, 2), term=3, commit=5, now_ms=990)
    elif kind == "candidate":
        core.tick(at(core.next_deadline_ms()))
    elif kind == "receiving":
        core.step(chunk(b"data", total=8, term=3, index=20, last_term=3), at(990))
    return core


KINDS = ("fresh", "follower", "candidate", "leader", "learner", "receiving", "healing", "asking")


@pytest.mark.parametrize("kind", KINDS)
def test_no_forged_message_ends_a_node_or_takes_a_committed_entry_away(kind: str) -> None:
    """Neither an exception nor a broken invariant, whatever comes and from which node: members that lie, too. Then the
    node takes entries of the next leader. (A member that lies and leads may commit what it likes.)"""
    for seed in range(60):
        forger = Forger(seed, made(kind))
        try:
            for _ in range(120):
                forger.go_on()
            works(forger)
        except Exception as error:
            raise AssertionError(f"{kind}, seed {seed}: {error!r}") from error


def denied(core: RaftCore, message: Message) -> str:
    """Why the core takes nothing of it: its log is as before."""
    before = core.status()
    core.step(message, at(990))
    out = drain(core, 990)
    assert (core.status(), out.entries, out.cut_after) == (before, [], None)
    (event,) = [event for event in out.events if isinstance(event, MessageIgnored)]
    return event.reason.removeprefix("impossible: ")


@pytest.mark.parametrize(
    ("prev", "entries", "commit", "reason"),
    [
        ((3, 1), [(3, 4)], 0, "entry 7 of term 3 is not the one that is committed here"),
        ((7, 2), [3], 0, "no entry of term 3 or before ends at 7 here"),
        ((8, 2), [2, 3], 0, "entry 9 has header CRC"),
        ((8, 2), [(3, 3)], 10, "it commits 10, which is not the end of an entry here"),
        ((7, 2), [], 7, "it commits 7, which is not the end of an entry here"),
    ],
)
def test_pitfall_19_entries_that_break_an_invariant_are_refused_before_anything_is_changed(
    prev: tuple[int, int], entries: list[int | tuple[int, int]], commit: int, reason: str
) -> None:
    """Of the leader of the term, a member. The first one ended all processes of a cluster.

    Guard: `_impossible` of raft/consensus/replication.py.
    """
    core = made("follower")
    log = core.state.log
    assert (log.tail.start.index, log.tail.ends, log.committed) == (2, [5, 6, 8, 9, 10], 5)
    chain = extend(log.mark_at(prev[0]) or Mark(*prev), *entries, data=b"another")
    message = append_entries(chain, prev=(prev[0], prev[1]), term=3, commit=commit)
    assert denied(core, message).startswith(reason)


def test_an_entry_that_no_other_one_could_follow_is_refused() -> None:
    """Its time is the last one, or its index is so high that a log would soon be full.

    Guard: `_is_chain` and `_impossible` of raft/consensus/replication.py.
    """
    core = made("follower")
    last = core.state.log.last
    late = replace(extend(last, 3)[0], time_ms=INDEX_MAX + 1)
    message = append_entries([late], prev=(last.index, last.term), term=3)
    assert denied(core, message).startswith(f"entry {late.index} has the time {INDEX_MAX + 1}")
    far = Mark(INDEX_FAR, 3)
    core.state.log.restart(far, 0)
    message = append_entries(extend(far, 3), prev=(far.index, far.term), term=3)
    assert denied(core, message) == f"no log has {INDEX_FAR + 1} records"


@pytest.mark.parametrize(
    ("index", "term", "total", "reason"),
    [
        (20, 4, 8, "no snapshot of term 3 ends at 20 in term 4"),
        (20, 0, 8, "no snapshot of term 3 ends at 20 in term 0"),
        (INDEX_MAX, 3, 8, f"no snapshot of term 3 ends at {INDEX_MAX} in term 3"),
        (7, 2, 8, "its snapshot ends at 7, which is not the end of an entry here"),
        (20, 3, 3, "bytes up to 4 of 3"),
    ],
)
def test_a_snapshot_that_no_leader_has_is_refused(index: int, term: int, total: int, reason: str) -> None:
    """A log that ends at the highest index takes no entry any more.

    Guard: `_impossible` of raft/consensus/snapshots.py.
    """
    message = chunk(b"data", total=total, term=3, index=index, last_term=term)
    assert denied(made("follower"), message) == reason


def test_a_report_of_a_term_that_no_node_has_begun_raises_none() -> None:
    """Neither the report of lost promises, nor the start in a hello.

    Guard: `is_beyond` of raft/consensus/state.py.
    """
    far = TERM_JUMP_MAX + 9
    for lie in ({"promised_term": far}, {"acked_term": far}, {"led_term": far}):
        core = made("asking")
        told = {"promised_term": 0, "acked_term": 0, "led_term": 0} | lie
        message = RecallReply(
            sender=2,
            to=1,
            term=2,
            run=RUN,
            acked_index=1,
            led_index=1,
            healed_index=0,
            is_alone=False,
            is_lost=False,
            **told,
        )
        assert denied(core, message).startswith("no node has begun")
        assert core.state.recall.floor == 0
    core = made("asking")
    start = Start(run=RUN + 1, last_index=0, last_term=0, term=far, floor=0)
    core.link_opened(2, DISKS[2], 1, at(1), start)
    assert core.state.term == 2


def works(forger: Forger) -> None:
    """A member leads the next term: the node takes its entry, and commits it."""
    core, forger.random = forger.core, Random(1)
    forger.now_ms += 10_000
    if core.state.receiving is not None:
        core.snapshot_failed(at(forger.now_ms))
    core.state.recall.run = 0
    forger.carry_out()
    state, log = core.state, core.state.log
    members = state.configuration.members
    sender = next((each.node for each in members if each.node != 1), 2)
    term = state.term + 1
    core.link_closed(sender, at(forger.now_ms))
    (entry,) = extend(log.last, term)
    assert append(
        core,
        [entry],
        prev=(log.last.index, log.last.term),
        term=term,
        sender=sender,
        commit=entry.index,
        now_ms=forger.now_ms,
    ).success
    assert log.committed == entry.index
    forger.check()
