"""Learners on their way to a vote, new disks under old numbers, leaders that leave (thesis 4.2; pitfalls, D)."""

import pytest

from raftlog.raft.changes import AddLearners, Remove, Replace
from raftlog.raft.consensus.roles import RoleName
from raftlog.raft.events import BecameFollower, ChangeGivenUp, TransferEnded, TransferStarted
from raftlog.raft.messages import AppendEntriesReply, RequestVote, RequestVoteReply, is_promise
from raftlog.raft.refusals import ConfigurationRefused, WhyRefused
from raftlog.raft.types import EntryKind, HardState
from tests.raft.consensus.members.growing_lab import GrowingLab, member
from tests.raft.lab import append, at, configuration, configuration_entry, drain, lead, make_core, reply


def led(nodes: int = 3) -> GrowingLab:
    """A lab that node 1 leads."""
    lab = GrowingLab(nodes)
    lab.elect(1)
    return lab


def test_pitfall_47_a_slow_learner_is_given_up_after_ten_rounds() -> None:
    """Each round takes longer than the least election timeout: it stays a learner, and commits never waited for it.

    Guard: `is_fast` in `_look_at` of raft/consensus/reconfiguration.py.
    """
    core = make_core(1, 3)
    lead(core, now_ms=300)
    reply(core, 2, match=2, now_ms=300)
    core.propose_configuration(AddLearners((member(4),)), at(310))
    drain(core)
    now_ms, rounds = 310, 0
    events: list[object] = []
    while not [event for event in events if isinstance(event, ChangeGivenUp)]:
        now_ms += 400
        index = core.propose(EntryKind.COMMANDS, 1, b"x", at(now_ms)).last
        events += drain(core, now_ms).events
        reply(core, 2, match=index, now_ms=now_ms)
        assert core.status().commit == index
        reply(core, 4, match=index - 1, round=1, now_ms=now_ms)
        core.tick(at(now_ms))
        events += drain(core, now_ms).events
        rounds += 1
        assert rounds < 30
    (event,) = [event for event in events if isinstance(event, ChangeGivenUp)]
    assert event.node == 4
    assert event.reason.startswith("it is too slow: round 10 took")
    assert core.state.configuration.learners == (4,)
    assert core.status().catching_up == ()


def test_pitfall_47_a_learner_that_never_answers_is_given_up() -> None:
    """After a silence; it can be said again, and then it only starts to look at it again.

    Guard: `catch_up_silence_ms` in `_look_at` of raft/consensus/reconfiguration.py.
    """
    lab = led()
    lab.change(1, AddLearners((member(4),)))
    lab.run(11_000)
    (event,) = [event for event in lab.events[1] if isinstance(event, ChangeGivenUp)]
    assert "does not answer for" in event.reason
    before = lab.cores[1].status().last
    lab.join(4)
    assert lab.change(1, AddLearners((member(4),))) == 3
    assert lab.cores[1].status().last == before
    lab.run(200)
    assert lab.voters(1) == (1, 2, 3, 4)


def test_a_promotion_waits_while_the_quorum_would_be_lost() -> None:
    """3 is dead and 4, which has everything, went silent: of four voters only two would answer. Neither is it given
    up: when 4 is back, it gets its vote.

    Guard: `_check_quorum` of raft/consensus/membership.py.
    """
    lab = led()
    lab.join(4)
    lab.stop(3)
    lab.cores[1].propose_configuration(AddLearners((member(4),)), at(lab.now_ms))
    lab.cores[1].transfer(3, at(lab.now_ms))  # nothing is promoted meanwhile
    lab.run(300)
    lab.stop(4)
    lab.run(2_000)
    assert lab.in_force(1).learners == (4,)
    assert lab.cores[1].status().catching_up == (4,)
    lab.start(4)
    lab.run(300)
    assert lab.voters(1) == lab.voters(4) == (1, 2, 3, 4)


def test_replacing_a_node_is_one_command() -> None:
    """In comes 4 as a learner; when it has everything, 4 comes and 3 goes in one joint change."""
    lab = led()
    lab.join(4)
    lab.stop(3)
    lab.change(1, Replace(3, member(4)))
    lab.run(300)
    assert lab.voters(1) == lab.voters(2) == lab.voters(4) == (1, 2, 4)
    assert lab.in_force(1).member(3) is None


def test_replacing_a_wiped_disk_under_its_number_is_one_command() -> None:
    """First the old disk goes, then the new one comes, catches up, and votes (pitfall 46: a wiped disk that votes under
    its old number)."""
    lab = led()
    lab.stop(3)
    lab.join(3, disk=33)
    lab.change(1, Replace(3, member(3, disk=33)))
    lab.run(400)
    assert lab.voters(1) == lab.voters(3) == (1, 2, 3)
    found = lab.in_force(2).member(3)
    assert found is not None
    assert found.incarnation == f"{33:032x}"


def test_a_repeated_replacement_continues_under_a_new_leader() -> None:
    """The refusal names the steps still to do, and the same command continues with them."""
    lab = led()
    lab.change(1, Replace(3, member(4)))
    assert lab.in_force(1).learners == (4,)
    lab.cores[1].transfer(2, at(lab.now_ms))
    lab.settle()
    assert [event for event in lab.events[1] if isinstance(event, ChangeGivenUp)] == [
        ChangeGivenUp(4, "leadership was lost: say it again")
    ]
    lab.join(4)
    lab.run(1_000)
    assert lab.in_force(2).learners == (4,)
    lab.change(2, Replace(3, member(4)))
    lab.run(200)
    assert lab.voters(2) == (1, 2, 4)


def test_the_second_step_of_a_replacement_is_given_up_with_the_leadership() -> None:
    """The old disk is out; that the new one should come in is not known to anybody else."""
    lab = led()
    lab.cut_off(1)
    lab.cores[1].propose_configuration(Replace(3, member(3, disk=33)), at(lab.now_ms))
    with pytest.raises(ConfigurationRefused) as refused:
        lab.cores[1].propose_configuration(Remove((2,)), at(lab.now_ms))
    assert refused.value.why is WhyRefused.OVERLAPS
    lab.run(2_000)
    assert ChangeGivenUp(3, "leadership was lost: say it again") in lab.events[1]


def test_pitfall_45_a_leader_that_is_removed_hands_over_and_goes() -> None:
    """It leads until the entry without it is committed. Then the most caught-up voter takes over at once: no election
    timeout passes, and the removed node never disturbs again.

    Guard: `_take_leave` of raft/consensus/reconfiguration.py.
    """
    lab = led()
    began_ms = lab.now_ms
    lab.change(1, Remove((1,)))
    assert 2 in lab.leaders()
    assert lab.now_ms == began_ms
    lab.run(60)  # 2 does not ask 1 for a vote: the old leader hears of the new term with its next heartbeat
    assert lab.leaders() == [2]
    status = lab.cores[1].status()
    assert status.role is RoleName.FOLLOWER
    assert lab.voters(1) == lab.voters(2) == lab.voters(3) == (2, 3)
    assert [type(event) for event in lab.events[1] if isinstance(event, TransferStarted | TransferEnded)] == [
        TransferStarted,
        TransferEnded,
    ]
    term = lab.cores[2].status().term
    lab.run(5_000)
    assert lab.leaders() == [2]
    assert lab.cores[2].status().term == term


def test_pitfall_45_a_leader_outside_does_not_count_itself() -> None:
    """Of {2, 3} both are needed, however durable the entry is at the leader.

    Guard: only voters are counted in `agreed` of raft/quorum.py.
    """
    core = make_core(1, 3)
    lead(core)
    reply(core, 2, match=2)
    joint = core.propose_configuration(Remove((1,)), at(400))
    drain(core)
    reply(core, 2, match=joint)
    assert core.status().commit < joint  # one of {2, 3}, although two of {1, 2, 3} have it
    reply(core, 3, match=joint)
    drain(core)
    assert core.state.configuration.voters == (2, 3)
    assert core.status().commit == joint
    reply(core, 2, match=joint + 1)
    drain(core)
    assert core.status().commit == joint
    assert core.status().role is RoleName.LEADER
    reply(core, 3, match=joint + 1)
    out = drain(core)
    assert core.status().commit == joint + 1
    assert [event for event in out.events if isinstance(event, TransferStarted)] == [TransferStarted(2)]


def test_pitfall_45_a_removed_leader_steps_down_without_a_successor() -> None:
    """After the longest time of a hand-over, or at once where no voter could take over; then an election decides."""
    lab = led()
    core = lab.cores[1]
    core.propose_configuration(Remove((1,)), at(lab.now_ms))
    while not lab.cores[1].status().transfer_to:
        for node in list(lab.cores):
            lab.work(node)
        message = lab.wire.pop(0)
        lab.cores[message.to].step(message, at(lab.now_ms))
    lab.wire.clear()
    lab.cut_off(1)
    lab.run(2_000)
    assert core.status().role is RoleName.FOLLOWER
    assert [event for event in lab.events[1] if isinstance(event, BecameFollower)][-1].reason in {
        "this node is no member any more",
        "no majority answers",
    }
    (leader,) = lab.leaders()
    assert lab.voters(leader) == (2, 3)


def test_thesis_4_2_2_a_removed_voter_campaigns_while_only_it_can_win() -> None:
    """Node 1 alone has the entry that removes it. Node 2 still needs its vote for the joint configuration, and 1 cannot
    give it to a shorter log. Found by a random walk: no node led any more.

    Guard: the walk over the uncommitted configurations in `may_campaign` of raft/consensus/state.py.
    """
    lab = GrowingLab(1)
    lab.elect(1)
    lab.join(2)
    lab.change(1, AddLearners((member(2),), promote=False))
    lab.cores[1].propose_configuration(Replace(1, member(2)), at(lab.now_ms))
    while lab.in_force(1).voters != (2,) or lab.in_force(1).outgoing:
        lab.now_ms += 10
        for node in list(lab.cores):
            lab.cores[node].tick(at(lab.now_ms))
            lab.work(node)
        if lab.wire and lab.in_force(1).member(1) is not None:
            message = lab.wire.pop(0)
            lab.cores[message.to].step(message, at(lab.now_ms))
    assert lab.in_force(2).outgoing == (1,)
    lab.wire.clear()
    for node in (1, 2):
        lab.stop(node)
        lab.start(node)
    lab.run(3_000)
    assert lab.leaders() == [2]
    assert lab.voters(1) == lab.voters(2) == (2,)


def test_pitfall_10_a_removed_node_that_missed_its_removal_does_not_disturb() -> None:
    """It missed its removal and times out for ever, but no term rises; its real campaign moves no node either.

    Guard: the pre-vote, and `is_bound` of raft/consensus/election.py.
    """
    lab = led(4)
    lab.cut_off(4)
    lab.change(1, Remove((4,)))
    lab.run(500)
    lab.heal()
    term = lab.cores[1].status().term
    lab.run(10_000)
    assert lab.leaders() == [1]
    assert {core.status().term for core in lab.cores.values()} == {term}
    lab.cores[2].step(
        RequestVote(sender=4, to=2, term=term + 5, last_index=1, last_term=1, link_closed=False), at(lab.now_ms)
    )
    assert lab.cores[2].status().term == term


def test_pitfall_11_a_learner_that_missed_its_promotion_votes() -> None:
    """4 is a voter for candidate 1, which needs it; 4 still believes to be a learner, and votes (etcd #10998).

    Guard: `on_request_vote` of raft/consensus/election.py asks for nobody's role.
    """
    candidate = make_core(1, 3)
    joint = configuration(4)
    entry = configuration_entry(candidate.state.log.last, joint, 2)
    append(candidate, [entry], prev=(1, 1), term=2, sender=2)
    learner = make_core(4, 4, members=configuration(4, learners=[4]), term=2)
    now_ms = candidate.next_deadline_ms()
    for _ in range(2):
        candidate.tick(at(now_ms))
        out = drain(candidate, now_ms)
        for request in out.to(4) + out.to(3):
            assert isinstance(request, RequestVote)
            voter = learner if request.to == 4 else make_core(3, 3, term=2)
            voter.step(request, at(now_ms))
            for answer in drain(voter, now_ms).to(1):
                assert isinstance(answer, RequestVoteReply)
                candidate.step(answer, at(now_ms))
    assert candidate.status().role is RoleName.LEADER


def test_transfer_is_quick_with_changes_around() -> None:
    """Within a joint configuration, and while a learner catches up: the next leader goes on with what the log says."""
    lab = led(4)
    lab.join(5)
    lab.change(1, AddLearners((member(5),)))
    began_ms = lab.now_ms
    lab.cores[1].propose_configuration(Remove((4,)), at(lab.now_ms))
    lab.cores[1].transfer(3, at(lab.now_ms))
    lab.settle()
    assert lab.leaders() == [3]
    assert lab.now_ms == began_ms
    lab.run(300)
    assert lab.voters(3) == (1, 2, 3)
    assert lab.in_force(3).learners == (5,)


@pytest.mark.parametrize("transfer", [False, True])
def test_pitfall_46_an_unnamed_disk_never_campaigns(transfer: bool) -> None:
    """Its number is that of a voter, but what that voter promised it does not know: it could vote twice in a term.

    Guard: `may_campaign` of raft/consensus/state.py.
    """
    lab = led()
    lab.stop(3)
    lab.join(3, disk=33)
    lab.disks[3], lab.hard_states[3] = lab.disks[1][:1], HardState(1)  # as formatted
    core = lab.start(3)
    lab.run(200)
    assert lab.in_force(3).is_voter(3)
    if transfer:
        lab.cores[1].transfer(3, at(lab.now_ms))
    lab.run(1_500)
    lab.cut_off(3)
    lab.run(5_000)
    assert core.status().role is RoleName.FOLLOWER
    assert core.status().vote == 0


def test_pitfall_46_only_promises_need_the_disk_that_is_named() -> None:
    """A node that slept while the leader's disk was replaced hears of it from that leader itself."""
    votes = RequestVoteReply(sender=1, to=2, term=1, request_term=1, granted=True)
    asks = RequestVote(sender=1, to=2, term=1, last_index=1, last_term=1)
    assert is_promise(votes)
    assert is_promise(AppendEntriesReply(sender=1, to=2, term=1, success=True, match=1, prev_index=1, round=0))
    assert not is_promise(asks)
