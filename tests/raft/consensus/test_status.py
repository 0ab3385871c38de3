"""What a core says of itself: at a leader with its followers, at a follower without."""

from raftlog.raft.consensus.status import status_of
from raftlog.raft.types import EntryKind
from tests.raft.lab import at, drain, lead, make_core, reply


def test_a_leader_shows_how_far_each_follower_is() -> None:
    """One entry is under way to both: node 2 has it, node 3 has not."""
    core = make_core(1, 3)
    lead(core)
    for peer in (2, 3):
        reply(core, peer, match=core.state.log.last.index)
    drain(core)
    index = core.propose(EntryKind.COMMANDS, 1, b"x", at(400)).last
    drain(core, 400)
    seen = status_of(core.state)
    assert (seen.node, seen.role, seen.leader, seen.term) == (1, "leader", 1, core.state.term)
    assert (seen.last.index, seen.commit) == (index, index - 1)
    assert [(each.node, each.match, each.sent) for each in seen.followers] == [
        (2, index - 1, index),
        (3, index - 1, index),
    ]
    reply(core, 2, match=index)
    drain(core, 401)
    seen = core.status()
    assert seen.commit == index
    assert [each.match for each in seen.followers] == [index, index - 1]
    assert not seen.is_changing


def test_a_follower_shows_no_followers() -> None:
    """It knows its own log, and no leader yet."""
    seen = status_of(make_core(2, 3).state)
    assert (seen.role, seen.leader, seen.followers, seen.transfer_to) == ("follower", 0, (), 0)
