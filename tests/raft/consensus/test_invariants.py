"""Each invariant sees the breach that it is there for."""

from collections import deque
from collections.abc import Callable

import pytest

from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.invariants import InvariantBroken, Observation, check_state, check_step, observe
from raftlog.raft.consensus.progress import Upload
from raftlog.raft.consensus.roles import Leader, RoleName
from raftlog.raft.consensus.state import Download
from raftlog.raft.options import Options
from raftlog.raft.ready import SnapshotWrite
from raftlog.raft.types import GENESIS, EntryKind
from tests.raft.lab import append, at, drain, lead, make_core, reply


def leading() -> RaftCore:
    """A leader with a follower that has everything and an entry under way."""
    core = make_core(1, 3, 1, (1, 4))
    lead(core)
    reply(core, 2, match=7)
    core.propose(EntryKind.COMMANDS, 3, b"x", at(400))
    drain(core)
    check_state(core.state)
    return core


def role(core: RaftCore) -> Leader:
    """The leader's role."""
    assert isinstance(core.state.role, Leader)
    return core.state.role


def far_ahead(core: RaftCore) -> Download:
    """Two chunks of a snapshot wait for the disk, together more than may wait."""
    data = bytes(core.state.options.snapshot_window_bytes)
    writes = deque(SnapshotWrite(9, 2, place * len(data), 2 * len(data), data) for place in range(2))
    return Download(2, 2, 9, 2, 2 * len(data), ahead=2 * len(data), writes=writes)


BREACHES: dict[str, Callable[[RaftCore], None]] = {
    "applied <= given": lambda core: setattr(core.state.log, "applied", 99),
    "persisted <= handed": lambda core: setattr(core.state.log, "persisted", 99),
    "only durable entries": lambda core: setattr(core.state.log, "persisted", 2),
    "every mark is the end": lambda core: setattr(core.state.log, "persisted", 8),
    "no entry or promise": lambda core: setattr(core.state, "durable_term", 9),
    "configuration in force": lambda core: core.state.configurations.append((50, core.state.configuration)),
    "own vote": lambda core: setattr(core.state, "vote", 3),
    "a leader's log ends": lambda core: setattr(core.state, "term", 3),
    "match <= sent": lambda core: setattr(role(core).progress[2], "match", 99),
    "match is the end": lambda core: setattr(role(core).progress[2], "match", 4),
    "in flight": lambda core: role(core).progress[3].inflight.append((1, 1)),
    "snapshot byte that arrived": lambda core: setattr(core.state, "receiving", Download(2, 2, 9, 2, 6, ahead=1)),
    "waits for the disk is bounded": lambda core: setattr(core.state, "receiving", far_ahead(core)),
    "beyond the tail's bounds": lambda core: setattr(core.state, "options", Options(tail_entries_max=1)),
    "given out than may wait": lambda core: setattr(core.state.log, "unapplied_bytes", 1 << 40),
    "uncommitted bytes": lambda core: setattr(role(core), "uncommitted_bytes", -1),
    "part of a snapshot is bounded": lambda core: setattr(role(core).progress[3], "sending", Upload(GENESIS, offset=1)),
    "announced before": lambda core: setattr(role(core).progress[2], "commit_sent", 99),
}


@pytest.mark.parametrize("what", BREACHES)
def test_a_broken_state_is_named(what: str) -> None:
    """One field is set wrong; the exception says which rule and where it comes from."""
    core = leading()
    BREACHES[what](core)
    with pytest.raises(InvariantBroken, match=what):
        check_state(core.state)


BEFORE = Observation(RoleName.LEADER, 5, 1, 1, 20, 5, 10, 4, 8)


@pytest.mark.parametrize(
    ("after", "what"),
    [
        (BEFORE._replace(term=4), "term never falls"),
        (BEFORE._replace(vote=2), "one vote per term"),
        (BEFORE._replace(leader=2), "one leader per term"),
        (BEFORE._replace(last=19), "a leader only appends"),
        (BEFORE._replace(last_term=4), "a leader only appends"),
        (BEFORE._replace(committed=11), "only in its term"),
        (BEFORE._replace(committed=9), "commit never falls"),
        (BEFORE._replace(applied=7), "applied never falls"),
        (BEFORE._replace(term=6, vote=0, last=9), "committed entries stay"),
        (BEFORE._replace(committed_term=3), "immutable"),
    ],
)
def test_a_step_that_must_not_be_is_named(after: Observation, what: str) -> None:
    """Two pictures of one process contradict each other."""
    with pytest.raises(InvariantBroken, match=what):
        check_step(1, BEFORE, after)


def test_legal_steps_break_no_invariant() -> None:
    """A new term may bring a new vote, leader and role; marks may rise."""
    check_step(1, BEFORE, BEFORE)
    check_step(1, BEFORE, BEFORE._replace(term=6, vote=0, leader=0, role=RoleName.FOLLOWER, last=12))
    check_step(
        1, BEFORE._replace(vote=0, leader=0), BEFORE._replace(last=30, committed=30, committed_term=5, applied=30)
    )
    core = make_core(1, 3)
    before = observe(core.state)
    append(core, prev=(1, 1), term=3)
    check_step(1, before, observe(core.state))
