"""ReadIndex: what a linearizable read waits for (items 32 to 38 of the pitfalls)."""

import pytest

from raftlog.raft.messages import AppendEntries
from raftlog.raft.options import Options
from raftlog.raft.ready import ReadReady
from raftlog.raft.refusals import NotLeader, ReadsFull
from raftlog.raft.types import EntryKind
from tests.raft.lab import Lab, at, drain, lead, make_core, reply


def test_pitfall_32_no_read_before_the_first_commit_of_the_term() -> None:
    """A new leader may not know yet which earlier entries are committed; the read waits, then sees all of them.

    Guard: `log.term_at(log.committed) != state.term` in `open_round` of raft/consensus/reads.py.
    """
    core = make_core(1, 3, 1, 1, term=1)
    lead(core)
    core.read(7, at(400))
    out = drain(core, 400)
    assert out.reads == []
    reply(core, 2, match=3)  # a round of its own term would be confirmed by this
    assert drain(core).reads == []
    reply(core, 2, match=4)
    out = drain(core)
    (round_,) = {message.round for message in out.messages if isinstance(message, AppendEntries) and message.round}
    reply(core, 3, match=0, round=round_)
    assert drain(core).reads == [ReadReady(7, 4)]


def test_pitfall_33_a_read_asked_again_gets_a_fresh_index() -> None:
    """The same context, after the leadership moved and more was written, is answered as of now, not as of then.

    Guard: `open_round` in raft/consensus/reads.py takes the commit index when it opens the round; a lost leadership
    fails reads.
    """
    lab = Lab(3)
    core = lab.elect(1)
    lab.run(100)
    lab.isolate(1)
    core.read(5, at(lab.now_ms))
    lab.run(2_000)
    (leader,) = lab.leaders()
    assert leader != 1
    index = lab.propose(leader)
    lab.run(100)
    lab.heal()
    lab.run(500)
    assert 5 not in lab.reads
    lab.cores[leader].read(5, at(lab.now_ms))
    lab.settle()
    assert lab.reads[5] >= index


def test_pitfall_34_one_echo_of_five_nodes_confirms_nothing() -> None:
    """A round needs a majority with the leader in it: two others of five, not one.

    Guard: `agreed` over the rounds in `confirm` of raft/consensus/reads.py.
    """
    core = make_core(1, 5)
    lead(core)
    for sender in (2, 3):
        reply(core, sender, match=2)
    core.read(1, at(400))
    drain(core)
    reply(core, 2, match=2, round=1)
    assert drain(core).reads == []
    reply(core, 2, match=2, round=1)
    assert drain(core).reads == []
    reply(core, 3, match=2, round=1)
    assert drain(core).reads == [ReadReady(1, 2)]


def test_pitfall_35_nothing_but_a_round_opened_after_the_read_confirms_it() -> None:
    """There are no leases: an echo of an older round, however fresh, lets no newer read go.

    Guard: `role.reads_open[0].round <= confirmed` in `confirm` of raft/consensus/reads.py.
    """
    core = make_core(1, 3)
    lead(core)
    reply(core, 2, match=2)
    core.read(1, at(400))
    drain(core)
    core.read(2, at(401))
    drain(core)
    reply(core, 2, match=2, round=1, now_ms=402)
    assert drain(core).reads == [ReadReady(1, 2)]
    reply(core, 3, match=2, round=2, now_ms=402)
    assert drain(core).reads == [ReadReady(2, 2)]


def test_pitfall_36_a_jump_of_the_wall_clock_moves_nothing_but_times_in_entries() -> None:
    """An hour forward or back: no election, no read is answered early, and entry times do not fall.

    Guard: only `append_own` in raft/consensus/log.py looks at `wall_ms`, and `seal_entry` raises it to the entry
    before.
    """
    core = make_core(1, 3)
    lead(core)
    reply(core, 2, match=2)
    drain(core)
    core.read(1, at(310)._replace(wall_ms=at(310).wall_ms + 3_600_000))
    drain(core)
    core.tick(at(320)._replace(wall_ms=at(320).wall_ms - 3_600_000))
    assert drain(core).reads == []
    before = core.state.log.last
    core.propose(EntryKind.COMMANDS, 1, b"x", at(330)._replace(wall_ms=5))
    assert core.state.log.last.time_ms == before.time_ms
    assert core.state.log.last.clock_ms == before.clock_ms + 30
    assert core.status().leader == 1


def test_pitfall_37_a_restarted_node_answers_no_read_from_a_replayed_state() -> None:
    """Alone in its cluster, it must win, commit in its new term, and name an index that covers all that was there.

    Guard: `register` in raft/consensus/reads.py refuses a node that does not lead; no role survives a restart.
    """
    lab = Lab(1)
    lab.elect(1)
    index = lab.propose(1)
    lab.settle()
    core = lab.start(1)
    with pytest.raises(NotLeader):
        core.read(9, at(lab.now_ms))
    lab.run(400)
    core.read(9, at(lab.now_ms))
    lab.settle()
    assert lab.reads[9] > index
    assert [entry.index for entry in lab.applied[1]] == [2, 3, 4]


def test_a_refusal_of_the_entries_still_confirms_the_leader() -> None:
    """A follower whose log does not match yet still acknowledges the leader of this term."""
    core = make_core(1, 3)
    lead(core)
    reply(core, 2, match=2)
    core.read(1, at(400))
    drain(core)
    reply(core, 3, match=0, success=False, prev=1, round=1, hint=(1, 1))
    assert drain(core).reads == [ReadReady(1, 2)]


def test_reads_are_bounded_and_the_bound_frees_itself() -> None:
    """ReadsFull at the limit, counted until the answer."""
    core = make_core(1, 3, options=Options(reads_pending_max=2))
    lead(core)
    reply(core, 2, match=2)
    core.read(1, at(400))
    drain(core)
    core.read(2, at(400))
    with pytest.raises(ReadsFull):
        core.read(3, at(400))
    drain(core)
    reply(core, 2, match=2, round=2)
    assert [read.context for read in drain(core).reads] == [1, 2]
    core.read(3, at(400))
