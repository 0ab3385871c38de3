"""Hands the events of a world that concern several properties to each of them, and holds all properties.

What concerns one property alone is shown to that one: `witness.reads`, `witness.states`, or a module of checks.

Only what changed is looked at, so that a check after every step stays cheap. A breach raises
`raftlog.raft.consensus.invariants.InvariantBroken` with node, property, section and evidence.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from raftlog.chaos.sim.disk.disk import SimDisk
from raftlog.chaos.sim.invariants.clients.read_linearizability import ReadLinearizability
from raftlog.chaos.sim.invariants.durability import (
    durable_first,
    healing_has_no_vote,
    persist_then_promise,
)
from raftlog.chaos.sim.invariants.durability.diverged_is_fenced import DivergedIsFenced
from raftlog.chaos.sim.invariants.elections import configuration_safety
from raftlog.chaos.sim.invariants.elections.check_quorum import CheckQuorum
from raftlog.chaos.sim.invariants.elections.election_safety import ElectionSafety
from raftlog.chaos.sim.invariants.elections.hand_overs import HandOvers
from raftlog.chaos.sim.invariants.elections.monotonic_term import MonotonicTerm
from raftlog.chaos.sim.invariants.elections.one_vote import OneVote
from raftlog.chaos.sim.invariants.elections.pre_vote import PreVote
from raftlog.chaos.sim.invariants.known import Knowledge
from raftlog.chaos.sim.invariants.log import (
    committed_is_durable,
    leader_completeness,
    log_matching,
    marks_at_ends,
)
from raftlog.chaos.sim.invariants.log.leader_append_only import LeaderAppendOnly
from raftlog.chaos.sim.invariants.log.times import Times
from raftlog.chaos.sim.invariants.peers.one_process import OneProcess
from raftlog.chaos.sim.invariants.peers.progress_is_true import ProgressIsTrue
from raftlog.chaos.sim.invariants.states import StateWitness
from raftlog.raft.configuration import Configuration
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.invariants import (
    InvariantBroken,
    Observation,
    check_leader,
    check_log,
    check_state,
    check_step,
    observe,
)
from raftlog.raft.consensus.roles import Leader, RoleName
from raftlog.raft.messages import (
    AppendEntries,
    AppendEntriesReply,
    InstallSnapshot,
    Message,
    RequestVote,
    RequestVoteReply,
    TimeoutNow,
    is_promise,
)
from raftlog.raft.types import Entry, EntryKind, Mark, NodeId


class Witness:
    """All properties of one world; raises InvariantBroken."""

    def __init__(self, configuration: Configuration, first: Entry) -> None:
        self.known = Knowledge(configuration, first)
        self.checks = 0
        self._cores: dict[NodeId, RaftCore] = {}
        self._pictures: dict[NodeId, tuple[object, ...]] = {}
        self._seen: dict[NodeId, Observation] = {}
        self._persisted: dict[NodeId, int] = {}
        self._elections = ElectionSafety()
        self._append_only = LeaderAppendOnly()
        self.votes = OneVote()
        self._asked: dict[tuple[NodeId, int], tuple[int, int]] = {}  # (candidate, term) -> how its log ends
        self._terms = MonotonicTerm()
        self._pre_votes = PreVote()
        self._quorum = CheckQuorum()
        self._progress = ProgressIsTrue()
        self.reads = ReadLinearizability(self.known)
        self.states = StateWitness(self.known)
        self.diverged = DivergedIsFenced()
        self.times = Times(self.known)
        self.hand_overs = HandOvers()
        self.one_process = OneProcess()

    # -- the life of a process ---------------------------------------------------------------------------------

    def started(self, core: RaftCore, disk: SimDisk) -> None:
        """A process began from its disk. Only volatile state may have fallen."""
        state, known = core.state, self.known
        node, log = state.node, state.log
        check_log(log, node)
        self._look_anew(core, disk)
        if node not in known.lost:
            if node not in known.rolled_back:  # else it may have forgotten both, until its peers report them
                self._terms.started(node, state.term)
                self.votes.started(node, state.term, state.vote)
            log_matching.started(known, node, log)
        configuration_safety.in_force(known, state)
        if log.committed > known.newest[0]:
            raise InvariantBroken(node, "a start commits only committed entries", "section 7", log.committed)
        self._look_at_disk(core)
        committed_is_durable.still_held(known, node)

    def switched(self, core: RaftCore, disk: SimDisk, mark: Mark, machine: Any) -> None:
        """Another process of that node is reached from now on, which began before: it stands where it stood."""
        node = core.state.node
        self.reads.crashed(node)
        self.diverged.began(node)
        self._look_anew(core, disk)
        self.states.restored(node, mark, machine)
        self._look_at_disk(core)
        committed_is_durable.still_held(self.known, node)

    def _look_anew(self, core: RaftCore, disk: SimDisk) -> None:
        node = core.state.node
        self.known.disks[node] = disk
        self._cores[node], self._seen[node], self._persisted[node] = core, observe(core.state), -1
        self._pictures.pop(node, None)
        self._append_only.started(node)

    def crashed(self, node: NodeId) -> None:
        self.reads.crashed(node)
        seen, disk = self._seen.get(node), self.known.disks.get(node)
        if seen is not None and disk is not None and seen.role is RoleName.LEADER:
            # A disk that lied may lose the hard state and keep entries of that term: a start finds the term in them.
            newest = disk.view.between(disk.view.durable_last - 1, disk.view.durable_last)
            durable = max(disk.view.hard_state.term, *(entry.term for entry in newest), 0)
            if max(durable, self.known.rolled_back.get(node, 0)) < seen.term:  # it may lead that term again
                log_matching.forgotten(self.known, seen.term)
                self._elections.forgotten(seen.term)

    def lost(self, node: NodeId) -> None:
        """That node's disk no longer is the one that made its promises: wiped, rolled back, or beyond repair.

        To be called before that happens. Its copies do not count from now on, and no peer may believe it: see
        `delivered`. What it had forgotten before, by damage, it had acknowledged too.
        """
        view = self.known.disks[node].view
        self.known.lost.setdefault(node, view.held | view.forgotten)

    def rolled_back(self, node: NodeId, promised: int) -> None:
        """That node's disk is an older one. Its peers remember promises of terms up to `promised`: no candidate
        counted a later vote, so the node may give it again."""
        self.known.rolled_back[node] = promised
        self.votes.forget(node, promised)
        self._terms.promised.pop(node, None)

    def finished(self) -> None:
        """The run is over: all is healed."""
        committed_is_durable.still_held(self.known, 0)

    # -- steps -------------------------------------------------------------------------------------------------

    def stepped(self, core: RaftCore) -> None:
        """A node took an input. Most inputs change nothing that can break a rule: then little is looked at."""
        state = core.state
        node, log, role = state.node, state.log, state.role
        self.checks += 1
        picture = (
            role,
            state.term,
            state.vote,
            state.durable_term,
            log.last,
            log.handed,
            log.persisted,
            log.committed,
            log.given,
            log.applied,
        )
        if picture != self._pictures.get(node):
            self._pictures[node] = picture
            self._changed(core)
        elif isinstance(role, Leader):
            check_leader(state, role)
        if isinstance(role, Leader):
            self._progress.leads(self.known, node, state.term, role, log)
            self._quorum.leads(state, role)

    def _changed(self, core: RaftCore) -> None:
        state = core.state
        node, log = state.node, state.log
        check_state(state)
        before, after = self._seen[node], observe(state)
        if log.persisted != self._persisted[node]:
            self._look_at_disk(core)
        if before == after:
            return
        check_step(node, before, after)
        self._seen[node] = after
        if after.role is RoleName.LEADER:
            if before.role is not after.role or before.term != after.term:
                self._elections.became_leader(node, after.term, state.recall.run)
                leader_completeness.became_leader(self.known, node, after.term, log)
            self._append_only.leads(node, after.term, log)
        if after.committed > before.committed:
            # The newest configuration of its own log rules, whatever the core takes for it.
            newest = self.known.configuration_in(log)
            ruling = state.configuration if newest is None else newest[1]
            committed_is_durable.commit_rose(self.known, node, log, ruling)
        # Entries that no Ready has given out yet are looked at when one does.
        if len(self.known.configurations) > 1 and after.last != before.last and log.handed == after.last:
            configuration_safety.in_force(self.known, state)

    def _look_at_disk(self, core: RaftCore) -> None:
        node, log = core.state.node, core.state.log
        self._persisted[node] = log.persisted
        durable_first.persisted_moved(node, log, self.known.disks[node].view)

    def appended(self, node: NodeId, entries: Iterable[Entry]) -> None:
        """Entries of a Ready: they went into the node's log."""
        log_matching.appended(self.known, node, entries)
        state = self._cores[node].state
        changes = [entry for entry in entries if entry.kind is EntryKind.CONFIGURATION]
        for entry in changes:
            configuration_safety.appended(self.known, node, entry, state.log)
        if changes:
            configuration_safety.in_force(self.known, state)

    # -- messages ----------------------------------------------------------------------------------------------

    def sends(self, message: Message, disk: SimDisk) -> None:
        """A message leaves: whatever it promises must be on that node's disk."""
        match message:  # the commonest first
            case AppendEntries():
                persist_then_promise.leads(message, disk.view.hard_state)
                if message.commit > self.known.newest[0]:
                    self.stepped(self._cores[message.sender])  # a change of members can commit while a Ready is made
                marks_at_ends.appends(self.known, message)
            case AppendEntriesReply():
                if message.success:
                    persist_then_promise.acknowledges(message, disk.view)
                    self._terms.promises(message.sender, message.term)
                    self._progress.answers(message)
                marks_at_ends.replies(self.known, message)
            case RequestVoteReply(pre=False, granted=True):
                self._voted(message.sender, message.term, message.to, disk, self._asked.get((message.to, message.term)))
            case RequestVoteReply(pre=True, granted=True):
                self._pre_votes.grants(message)
            case RequestVote(pre=False):
                log = self._asked[message.sender, message.term] = (message.last_term, message.last_index)
                self._voted(message.sender, message.term, message.sender, disk, log)
                self._pre_votes.campaigns(self.known, message)
            case TimeoutNow():
                persist_then_promise.leads(message, disk.view.hard_state)
                self._pre_votes.hands_over(message)
            case InstallSnapshot():
                persist_then_promise.leads(message, disk.view.hard_state)

    def _voted(self, node: NodeId, term: int, candidate: NodeId, disk: SimDisk, log: tuple[int, int] | None) -> None:
        if node in self.known.lost:
            return
        persist_then_promise.votes(node, term, candidate, disk.view.hard_state)
        healing_has_no_vote.votes(self.known, node, term, candidate, disk.view, log)
        self.votes.votes_for(node, term, candidate)
        self._terms.promises(node, term)

    def delivered(self, message: Message) -> None:
        """A peer took a message: no promise of a disk that has forgotten what it promised (docs/promises.md: identity
        is not address). The questions of such a disk count for nothing, as those of any node."""
        if message.sender in self.known.lost and is_promise(message):
            evidence = f"node {message.to} believes {type(message).__name__} of term {message.term}"
            raise InvariantBroken(message.sender, "a lost disk takes no part", "identity is not address", evidence)

    def answers(self, node: NodeId, index: int) -> None:
        """A node answers a client as of `index`; 0: the request was not applied."""
        if index:
            self.diverged.answers(node, self._cores[node].state.configuration)
