"""Finishes changes of members by itself, as the leader: leaves joint configurations, promotes, hands over and goes.

It also raises the cluster version once every member knows a newer one, as a change of its own
(`raftlog.raft.versions`).

The core calls `advance` before a Ready, unless the members are settled and the cluster version is the newest.
Thesis 4.2.1 (catching up in rounds), 4.2.2 (a leader that is removed), 4.3 (leaving the joint configuration).

How a driver changes members: it calls `core.propose_configuration(change, now)` at the leader, with a change of
`raftlog.raft.changes`. The call returns the index of the first configuration entry, or raises a refusal that names the
fix. Then the driver only goes on taking Readies: `status().is_changing` shows the end, the events ConfigurationChanged
and ChangeGivenUp the steps. After each turn it compares `core.state.configurations[-1]` with the configuration of its
links. If it changed, the driver dials new members, and closes the links of removed ones and of other incarnations.

A node that is to join starts with an empty log, `HardState()`, and `Configuration()` at index 0 (or with the first
entry of the log, as formatted). Each node gives its core the `incarnation` of its disk. A node takes requests, but no
promises, from a disk that its own configuration does not name (`raftlog.raft.messages.is_promise`). A restarted node
passes the newest configuration of its log and, as `earlier`, those before it back to the snapshot's. After a change of
leader, only steps that the log records continue. A replacement or promotion that waited for a learner needs the same
command again.
"""

from __future__ import annotations

from dataclasses import replace

from raftlog.raft import changes, versions
from raftlog.raft.consensus import election, membership, reads
from raftlog.raft.consensus.roles import CatchUp, Leader
from raftlog.raft.consensus.state import State, become_follower
from raftlog.raft.events import ChangeGivenUp, VersionRaised
from raftlog.raft.refusals import CannotTransfer, ConfigurationRefused
from raftlog.raft.types import NOBODY, NodeId


def advance(state: State, role: Leader) -> None:
    """Take the next step of a change that is under way, if it is due. The leader may have stepped down afterwards."""
    index, configuration = state.configurations[-1]
    is_settled = len(role.progress) == len(configuration.members) - 1  # this node a member, and no other one is left
    if is_settled and not configuration.outgoing and not role.catch_ups and role.next_change is None:
        _raise_version(state, role)
        return
    before = len(state.configurations)
    if index <= state.log.committed and not configuration.outgoing and not is_settled:
        _take_leave(state, role)
    if isinstance(state.role, Leader) and role.transfer is None:
        _go_on(state, role)
        if len(state.configurations) != before:
            reads.confirm(state, role)  # a node that is still asked may have answered already


def _raise_version(state: State, role: Leader) -> None:
    """Nothing else is under way: the next change is that of the cluster version, if every member knows a newer one."""
    log = state.log
    index, configuration = state.configurations[-1]
    if role.transfer is not None or index > log.committed or log.term_at(log.committed) != state.term:
        return
    version = versions.known_to_all(configuration, state.node, state.knows, state.recall.said)
    if version > configuration.version:
        membership.put(state, role, replace(configuration, version=version))
        state.out.events.append(VersionRaised(state.configurations[-1][0], version))


def _go_on(state: State, role: Leader) -> None:
    log = state.log
    index, configuration = state.configurations[-1]
    if index > log.committed or log.term_at(log.committed) != state.term:
        return
    if configuration.outgoing:
        membership.put(state, role, changes.left(configuration))
    elif role.next_change is not None:
        _take_second_step(state, role)
    elif role.catch_ups and state.now.monotonic_ms >= role.catch_up_ms:
        role.catch_up_ms = state.now.monotonic_ms + state.options.heartbeat_ms
        for node in list(role.catch_ups):
            if _look_at(state, role, node, role.catch_ups[node]):
                return


# ---------------------------------------------------------------------------------------------------------------
# Removed nodes.


def _take_leave(state: State, role: Leader) -> None:
    """The configuration without some member is committed.

    The removed members learn that with the next heartbeats. A removed leader hands over to the most caught-up voter,
    and steps down even if that fails (pitfall 45: a leader outside the new configuration).
    """
    now_ms, options = state.now.monotonic_ms, state.options
    is_member = state.configuration.member(state.node) is not None
    if role.farewell_ms is None:
        wait_ms = 2 * options.heartbeat_ms if is_member else options.transfer_timeout_ms
        role.farewell_ms = now_ms + wait_ms
    is_over = now_ms >= role.farewell_ms
    if is_member:
        if is_over:
            role.farewell_ms = None
            role.progress = {peer: role.progress[peer] for peer in state.configuration.peers(state.node)}
        return
    if role.transfer is None:
        try:
            if not is_over:
                election.transfer(state, NOBODY)
                return
        except CannotTransfer:
            pass
        become_follower(state, state.term, NOBODY, "this node is no member any more")


def _take_second_step(state: State, role: Leader) -> None:
    """The old disk is out: the new one of the same number comes in. Nothing can refuse it: `_check_second_step` looked
    before the first step, no other change was taken since, and a learner asks for no quorum."""
    change, role.next_change = role.next_change, None
    assert change is not None
    membership.propose(state, role, change)


# ---------------------------------------------------------------------------------------------------------------
# Learners on their way to a vote.


def _look_at(state: State, role: Leader, node: NodeId, catch_up: CatchUp) -> bool:
    """See how far a learner is, once per heartbeat; whether it got its vote."""
    progress, options, now_ms = role.progress[node], state.options, state.now.monotonic_ms
    silent_ms = now_ms - max(progress.contact_ms, catch_up.started_ms)
    if silent_ms > options.catch_up_silence_ms:
        _give_up(state, role, node, f"it does not answer for {silent_ms} ms")
        return False
    if progress.match < catch_up.target:
        return False
    is_fast = now_ms - catch_up.started_ms < options.election_timeout_min_ms
    if not is_fast and catch_up.round >= options.catch_up_rounds_max:
        _give_up(state, role, node, f"it is too slow: round {catch_up.round} took {now_ms - catch_up.started_ms} ms")
        return False
    if is_fast and _promote(state, role, node, catch_up):
        return True
    catch_up.round += not is_fast
    catch_up.target = state.log.last.index
    catch_up.started_ms = now_ms
    return False


def _promote(state: State, role: Leader, node: NodeId, catch_up: CatchUp) -> bool:
    """Make it a voter; returns whether that was accepted.

    It is a learner of this configuration (`_align` drops others), and with it there is a voter. So the only possible
    refusal is that too few voters answer, and that may pass.
    """
    configuration = state.configuration
    try:
        if configuration.member(catch_up.replaces) is not None:
            goal = changes.swapped(configuration, catch_up.replaces, node)
        else:
            goal = changes.after(configuration, changes.Promote((node,)))
        membership.append(state, role, goal)
    except ConfigurationRefused:
        return False
    return True


def _give_up(state: State, role: Leader, node: NodeId, reason: str) -> None:
    del role.catch_ups[node]
    state.out.events.append(ChangeGivenUp(node, reason))
