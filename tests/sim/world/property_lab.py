"""Three entries, logs, disks and messages made of them: what the tests of single properties are about."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from raftlog.chaos.sim.disk.view import View
from raftlog.chaos.sim.invariants.known import Knowledge
from raftlog.chaos.sim.invariants.log import log_matching
from raftlog.raft.codec.configuration import encode_configuration
from raftlog.raft.codec.entry import seal_entry
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.consensus.log import Log
from raftlog.raft.messages import AppendEntries, AppendEntriesReply, RequestVote, RequestVoteReply
from raftlog.raft.types import GENESIS, Entry, EntryKind, HardState, LogStart, Mark, TermRun


def configuration(*voters: int, outgoing: tuple[int, ...] = ()) -> Configuration:
    """Members 1 to 5, of which these vote."""
    return Configuration(tuple(Member(n, f"{n:032x}", "", "") for n in range(1, 6)), voters, outgoing)


THREE = configuration(1, 2, 3)


def sealed(before: Mark, term: int, count: int = 1, kind: EntryKind = EntryKind.NOOP, data: bytes = b"") -> Entry:
    """The entry after that mark."""
    return seal_entry(before, term=term, kind=kind, count=count, time_ms=0, clock_ms=0, data=data)


def of_configuration(before: Mark, term: int, value: Configuration) -> Entry:
    """A configuration entry."""
    return sealed(before, term, kind=EntryKind.CONFIGURATION, data=encode_configuration(value))


FIRST = of_configuration(GENESIS, 1, THREE)
SECOND = sealed(FIRST.mark, 1, 4)  # ends at 5
THIRD = sealed(SECOND.mark, 2)  # ends at 6
OTHER = sealed(SECOND.mark, 3)  # also at 6
ENTRIES = (FIRST, SECOND, THIRD)


def log_of(*entries: Entry, committed: int = 1, applied: int = 1) -> Log:
    """A log that holds these entries, all of them durable."""
    runs: list[TermRun] = []
    for entry in entries:
        if not runs or runs[-1].term != entry.term:
            runs.append(TermRun(entry.first, entry.term))
    start = LogStart(1, tuple(runs), entries[-1].mark, tuple(entries))
    return Log(start, committed=committed, applied=applied, now_ms=0)


class Disk:
    """A disk that has these entries, all of them durable."""

    def __init__(self, entries: Sequence[Entry] = ENTRIES, forgotten: Iterable[tuple[int, int]] = ()) -> None:
        ends = [entry.index for entry in entries]
        self.view = View([*entries], ends, len(ends), HardState(2, 1, 1), forgotten=frozenset(forgotten))


def known(*disks: Disk, committed: int = 1) -> Knowledge:
    """The knowledge after three entries were appended, and `committed` of them committed."""
    known = Knowledge(THREE, FIRST)
    log_matching.appended(known, 1, ENTRIES)
    known.committed = [(entry.index, entry.term) for entry in ENTRIES[:committed]]
    known.commits = [(entry.term, entry.index) for entry in ENTRIES[:committed]]
    disks_by_node: dict[int, Any] = dict(enumerate(disks, start=1))
    known.disks = disks_by_node
    return known


def appends(**fields: Any) -> AppendEntries:
    """A message of leader 1 in term 2."""
    values: dict[str, Any] = {"sender": 1, "to": 2, "term": 2, "prev_index": 5, "prev_term": 1, "commit": 1, "round": 0}
    return AppendEntries(**values | fields)


def replies(**fields: Any) -> AppendEntriesReply:
    """A follower's answer."""
    values: dict[str, Any] = {"sender": 2, "to": 1, "term": 2, "success": True, "match": 6, "prev_index": 5, "round": 0}
    return AppendEntriesReply(**values | fields)


def asks(**fields: Any) -> RequestVote:
    """Node 1 campaigns in term 3."""
    values: dict[str, Any] = {"sender": 1, "to": 2, "term": 3, "last_index": 6, "last_term": 2}
    return RequestVote(**values | fields)


def grants(sender: int, term: int = 3) -> RequestVoteReply:
    """A pre-vote for node 1."""
    return RequestVoteReply(sender=sender, to=1, term=2, request_term=term, granted=True, pre=True)


Case = tuple[Callable[..., object], tuple[Any, ...], tuple[Any, ...]]
"""A check, its arguments in a legal case, and those of the smallest breach."""


def sees(check: Callable[..., object], legal: tuple[Any, ...], breach: tuple[Any, ...]) -> None:
    """What the rule allows passes; the smallest breach of it raises InvariantBroken with its section."""
    check(*legal)
    with pytest.raises(InvariantBroken) as broken:
        check(*breach)
    assert broken.value.what
    assert broken.value.section
