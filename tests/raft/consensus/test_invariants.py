"""Each invariant sees the breach that it is there for."""

from collections.abc import Callable

import pytest

from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.invariants import InvariantBroken, Observation, check_state, check_step, observe
from raftlog.raft.consensus.roles import Leader, RoleName
from raftlog.raft.types import EntryKind
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
