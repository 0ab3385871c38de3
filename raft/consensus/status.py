"""Builds a frozen picture of a core for status pages, metrics and tests: its own state and its followers'."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.raft.configuration import Configuration
from raftlog.raft.consensus.roles import ROLE_NAMES, Leader, RoleName
from raftlog.raft.consensus.state import State
from raftlog.raft.types import NOBODY, Mark, NodeId


@dataclass(frozen=True, slots=True)
class FollowerView:
    """The leader's view of one follower."""

    node: NodeId
    match: int
    sent: int
    mode: str  # probe, replicate, snapshot
    last_contact_ms: int  # monotonic
    snapshot_index: int  # of the snapshot on its way there, or 0
    snapshot_bytes: int  # of it that are written there
    snapshot_total: int


@dataclass(frozen=True, slots=True)
class CoreStatus:
    """What a core knows of itself. `followers` is empty but at a leader."""

    node: NodeId
    role: RoleName
    term: int
    vote: NodeId
    leader: NodeId
    first: int  # oldest index that this log can give
    snapshot: Mark  # newest one that is durable here
    last: Mark
    persisted: int
    commit: int
    applied: int
    configuration_index: int
    configuration: Configuration  # in force; joint while its `outgoing` is not empty
    transfer_to: NodeId
    floor: int  # not 0: its log was damaged, and it has no vote until it holds an entry of that term or a later one
    catching_up: tuple[NodeId, ...]  # learners that get a vote when they have caught up; known at their leader alone
    followers: tuple[FollowerView, ...]

    @property
    def is_changing(self) -> bool:
        """Whether a change of the members is under way, as far as this node knows."""
        return bool(self.configuration_index > self.commit or self.configuration.outgoing or self.catching_up)


def status_of(state: State) -> CoreStatus:
    """The picture of the node that has that state."""
    log, role = state.log, state.role
    followers: tuple[FollowerView, ...] = ()
    if isinstance(role, Leader):
        followers = tuple(
            FollowerView(
                peer,
                progress.match,
                progress.sent,
                progress.mode.value,
                progress.contact_ms,
                *((0, 0, 0) if (sent := progress.sending) is None else (sent.mark.index, sent.offset, sent.total)),
            )
            for peer, progress in role.progress.items()
        )
    return CoreStatus(
        node=state.node,
        role=ROLE_NAMES[type(role)],
        term=state.term,
        vote=state.vote,
        leader=state.leader,
        first=log.first,
        snapshot=log.snapshot,
        last=log.last,
        persisted=log.persisted,
        commit=log.committed,
        applied=log.applied,
        configuration_index=state.configurations[-1][0],
        configuration=state.configuration,
        transfer_to=role.transfer.to if isinstance(role, Leader) and role.transfer else NOBODY,
        floor=state.recall.floor,
        catching_up=tuple(role.catch_ups) if isinstance(role, Leader) else (),
        followers=followers,
    )
