"""Checks the invariants of one node, at any time and between two moments of its life.

`check_state` and `check_step` cost a few microseconds, so that the server may call them after every step;
`check_log` walks the whole tail. What must hold between nodes (election safety, log matching, leader completeness,
state machine safety: raft paper figure 3) is the simulator's business. The idea is LogCabin's.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

from raftlog.raft.consensus.log import Log
from raftlog.raft.consensus.progress import Mode
from raftlog.raft.consensus.roles import ROLE_NAMES, Candidate, Leader, RoleName
from raftlog.raft.consensus.state import State
from raftlog.raft.types import NOBODY, NodeId

NEWEST: Final = 4
"""Ends of entries in which a mark is looked for before the whole log is asked: most marks are at one of them."""


class InvariantBroken(Exception):
    """Something that must never happen did: the node must stop, and not write another byte."""

    def __init__(self, node: NodeId, what: str, section: str, detail: object = "") -> None:
        super().__init__(f"node {node}: {what} ({section}): {detail}")
        self.node, self.what, self.section, self.detail = node, what, section, detail


class Observation(NamedTuple):
    """What `check_step` compares of one node. Made after every step, so a tuple: that is cheap."""

    role: RoleName
    term: int
    vote: NodeId
    leader: NodeId
    last: int
    last_term: int
    committed: int
    committed_term: int
    applied: int


def observe(state: State) -> Observation:
    """The node as it is now."""
    log = state.log
    return Observation(
        ROLE_NAMES[type(state.role)],
        state.term,
        state.vote,
        state.leader,
        log.last.index,
        log.last.term,
        log.committed,
        log.term_at(log.committed) or 0,
        log.applied,
    )


def check_state(state: State) -> None:
    """Basic invariants. Raises InvariantBroken."""
    log, node = state.log, state.node
    last = log.last.index
    applied, committed, persisted, handed = marks = (log.applied, log.committed, log.persisted, log.handed)
    if not applied <= log.given <= committed <= last:
        found = (applied, log.given, committed, last)
        raise InvariantBroken(node, "applied <= given <= commit <= last", "figure 2", found)
    if not persisted <= handed <= last:
        raise InvariantBroken(node, "persisted <= handed to disk <= last", "thesis 10.2.1", (persisted, handed, last))
    if log.given > persisted:
        raise InvariantBroken(node, "only durable entries are applied here", "docs/promises.md", (log.given, persisted))
    sure = log.tail.ends[-NEWEST:]
    for mark in marks:
        if mark != last and mark not in sure and not log.may_end(mark):
            raise InvariantBroken(node, "every mark is the end of an entry", "docs/promises.md", mark)
    if state.term < log.last.term or state.durable_term > state.term:
        terms = (state.term, log.last.term, state.durable_term)
        raise InvariantBroken(node, "no entry or promise is of a later term than the node", "figure 2", terms)
    if state.configurations[-1][0] > last:
        raise InvariantBroken(node, "the configuration in force is in the log", "thesis 4.1", state.configurations[-1])
    receiving = state.receiving
    if receiving is not None and receiving.ahead - receiving.offset != sum(len(each.data) for each in receiving.writes):
        detail = (receiving.offset, receiving.ahead, len(receiving.writes))
        claim = "each snapshot byte that arrived is written or waits for it"
        raise InvariantBroken(node, claim, "pitfall 55: chunks out of place", detail)
    if receiving is not None and len(receiving.writes) > 1:
        waiting = receiving.ahead - receiving.offset
        if waiting > state.options.snapshot_window_bytes:
            raise InvariantBroken(node, "what waits for the disk is bounded", "docs/promises.md", waiting)
    options = state.options
    if log.tail.bytes > options.tail_bytes_max or len(log.tail.entries) > options.tail_entries_max:
        durable = bisect_right(log.tail.ends, persisted)
        size = log.tail.bytes - sum([entry.size for entry in log.tail.entries[durable:]])
        if size > options.tail_bytes_max or durable > options.tail_entries_max:
            raise InvariantBroken(
                node, "durable entries beyond the tail's bounds leave memory", "docs/promises.md", (size, durable)
            )
    if log.unapplied_bytes > options.apply_bytes_max + options.entry_bytes_max + options.append_bytes_max:
        raise InvariantBroken(node, "no more is given out than may wait", "docs/promises.md", log.unapplied_bytes)
    role = state.role
    if state.vote != node and isinstance(role, (Candidate, Leader)):
        raise InvariantBroken(node, "a candidate or leader has its own vote", "thesis 3.4", state.vote)
    if isinstance(role, Leader):
        check_leader(state, role)


def check_leader(state: State, role: Leader) -> None:
    """The part of `check_state` that is about a leader's view of its followers. Raises InvariantBroken."""
    log, node = state.log, state.node
    if log.last.term != state.term:
        raise InvariantBroken(node, "a leader's log ends in its term", "thesis 6.4", (log.last, state.term))
    if role.uncommitted_bytes < 0 or (log.committed == log.last.index and role.uncommitted_bytes):
        claim = "uncommitted bytes are those of uncommitted entries"
        raise InvariantBroken(node, claim, "pitfall 29: an isolated leader's log grows", role.uncommitted_bytes)
    last, sure = log.last.index, log.tail.ends[-NEWEST:]
    for peer, progress in role.progress.items():
        match = progress.match
        if not match <= progress.sent <= last:
            raise InvariantBroken(node, "match <= sent <= last", "figure 2", (peer, match, progress.sent, last))
        if match != last and match not in sure and not log.may_end(match):
            raise InvariantBroken(node, "match is the end of an entry", "docs/promises.md", (peer, match))
        if progress.inflight and progress.mode is not Mode.REPLICATE:
            raise InvariantBroken(node, "only a streamed follower has messages in flight", "etcd progress", peer)
        if (sending := progress.sending) is not None:
            under_way, bound = sending.sent - sending.offset, state.options.snapshot_window_bytes
            if under_way < 0 or (len(sending.inflight) > 1 and under_way > bound):
                detail = (peer, under_way)
                raise InvariantBroken(node, "the unanswered part of a snapshot is bounded", "docs/promises.md", detail)
        if progress.commit_sent > log.committed:
            raise InvariantBroken(node, "no commit is announced before it is one", "5.3", (peer, progress.commit_sent))


def check_log(log: Log, node: NodeId = NOBODY) -> None:
    """The tail is one unbroken chain, and its counters are right. Raises InvariantBroken."""
    index, term, crc = log.tail.start.index, log.tail.start.term, log.tail.start.header_crc
    for entry, end in zip(log.tail.entries, log.tail.ends, strict=True):
        if entry.before != index or entry.index != end or entry.term < term or log.term_at(end) != entry.term:
            raise InvariantBroken(node, "entries follow each other", "5.3", (index, term, entry.index, entry.term))
        if index and entry.previous_crc != crc:
            raise InvariantBroken(node, "each entry names the one before", "docs/promises.md", (index, entry.index))
        index, term, crc = entry.index, entry.term, entry.mark.header_crc
    if (index, term) != (log.last.index, log.last.term):
        raise InvariantBroken(node, "the tail ends at last", "docs/promises.md", (index, log.last))
    if log.tail.bytes != sum(entry.size for entry in log.tail.entries):
        raise InvariantBroken(node, "the tail's bytes are counted", "docs/promises.md", log.tail.bytes)
    runs = list(zip(log.run_firsts, log.run_terms, strict=True))
    if runs != sorted(runs) or len(runs) != len({term for _, term in runs}):
        raise InvariantBroken(node, "terms only rise along the log", "3.6", runs)


def check_step(node: NodeId, before: Observation, after: Observation) -> None:
    """Delta invariants between two moments of one process. Raises InvariantBroken."""
    if after.term < before.term:
        raise InvariantBroken(node, "the term never falls", "5.1", (before.term, after.term))
    if after.term == before.term:
        if before.vote not in {NOBODY, after.vote}:
            raise InvariantBroken(node, "one vote per term", "5.2", (before.term, before.vote, after.vote))
        if NOBODY not in {before.leader, after.leader} and before.leader != after.leader:
            raise InvariantBroken(node, "one leader per term", "figure 3", (before.term, before.leader, after.leader))
        if before.role is after.role is RoleName.LEADER:
            if after.last < before.last or after.last_term != before.last_term:
                raise InvariantBroken(node, "a leader only appends", "figure 3", (before.last, after.last))
            if after.committed > before.committed and after.committed_term != after.term:
                detail = (after.committed, after.committed_term, after.term)
                raise InvariantBroken(node, "a leader commits by counting only in its term", "5.4.2", detail)
    if after.committed < before.committed:
        raise InvariantBroken(node, "commit never falls", "figure 3", (before.committed, after.committed))
    if after.applied < before.applied:
        raise InvariantBroken(node, "applied never falls", "figure 3", (before.applied, after.applied))
    if after.last < before.committed:
        raise InvariantBroken(node, "committed entries stay", "figure 3", (before.committed, after.last))
    if after.committed == before.committed and after.committed_term != before.committed_term:
        detail = (before.committed, before.committed_term, after.committed_term)
        raise InvariantBroken(node, "committed entries are immutable", "figure 3", detail)
