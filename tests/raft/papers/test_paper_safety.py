"""The Raft paper's sections on safety, crashes, timing, membership and clients, each test named after its section."""

import pytest

from raftlog.raft.configuration import Configuration
from raftlog.raft.consensus.roles import RoleName
from raftlog.raft.messages import RequestVote, RequestVoteReply
from raftlog.raft.options import Options
from tests.raft.lab import Lab, at, configuration, drain, lead, make_core, reply, vote_request


def test_section_5_4_1_a_committed_entry_is_in_every_later_leader() -> None:
    """Leader Completeness: the node without it cannot win, however often it tries."""
    lab = Lab(3)
    lab.elect(1)
    lab.run(100)
    lab.isolate(3)
    index = lab.propose(1)
    lab.run(100)
    assert lab.cores[1].status().commit == index
    lab.stop(1)
    lab.heal()
    lab.run(10_000)
    assert lab.leaders() == [2]
    assert lab.cores[3].state.log.term_at(index) == 2


def test_section_5_4_1_the_request_carries_the_logs_end() -> None:
    """RequestVote names index and term of the candidate's last entry: for a batch, the index of its last record."""
    core = make_core(2, 3, (1, 4), (1, 2))
    core.tick(at(core.next_deadline_ms()))
    requests = [message for message in drain(core).messages if isinstance(message, RequestVote)]
    assert [(request.to, request.last_index, request.last_term, request.term) for request in requests] == [
        (1, 7, 1, 2),
        (3, 7, 1, 2),
    ]


def test_section_5_4_2_figure_8_an_old_entry_on_a_majority_is_lost_or_saved_by_a_later_term() -> None:
    """Thesis figure 3.7 (paper figure 8), the whole schedule on five nodes.

    (a) S1 leads term 2 and replicates index 2 to S2 only. (b) S5 leads term 3 and takes index 2 for itself. (c) S1
    leads term 4 and brings its term 2 entry to S3: a majority holds it, and it is not committed. (d) S5 may still win
    and overwrite it; (e) had S1 committed an entry of term 4 on a majority first, S5 could not win.
    """
    old: list[int | tuple[int, int]] = [2]
    newer: list[int | tuple[int, int]] = [3]
    lab = Lab(5, {1: old, 2: old, 5: newer})
    lab.hard_states = {node: type(state)(3) for node, state in lab.hard_states.items()}
    for node in lab.members.voters:
        lab.start(node)
    # (c) S1 wins term 4 with S2 and S3; its own no-op reaches no follower.
    lab.isolate(4, 5)
    core = lab.cores[1]
    lab.elect(1)
    assert core.status().term == 4
    lab.stop(1)
    for node in (1, 2, 3):  # take back the no-op of term 4 from everyone but S1, as if it had been lost on the way
        kept = 3 if node == 1 else 2
        lab.disks[node] = lab.disks[node][:kept]
    lab.start(1)
    for node in (2, 3):
        lab.start(node)
    assert [lab.terms(node)[1:] for node in (1, 2, 3)] == [[2, 4], [2], [2]]
    assert [core.status().commit for core in lab.cores.values()] == [1] * 5
    # (d) S5 wins with S2, S3 and S4, whose last entries are of term 2 or none, and overwrites the entry of term 2.
    lab.heal()
    lab.isolate(1)
    lab.now_ms = lab.cores[5].next_deadline_ms()
    lab.cores[5].tick(at(lab.now_ms))  # from a refused pre-vote it learns of term 4
    lab.settle()
    lab.elect(5)
    lab.run(200)
    assert [lab.terms(node)[1:] for node in (2, 3, 4, 5)] == [[3, 5]] * 4
    lab.heal()
    lab.run(500)
    assert lab.terms(1)[1:] == [3, 5]
    # (e) Once an entry of the own term is on a majority, a node without it cannot win.
    lab = Lab(5, {1: [2, 4], 2: [2, 4], 3: [2, 4], 5: [3]})
    lab.cores[5].tick(at(lab.cores[5].next_deadline_ms()))
    lab.settle()
    assert lab.cores[5].status().role is not RoleName.LEADER
    lab.elect(1)
    lab.run(300)
    assert [lab.terms(node)[1:4] for node in (1, 2, 3, 4, 5)] == [[2, 4, 5]] * 5


def test_section_5_5_a_leader_asks_a_silent_follower_for_ever() -> None:
    """Heartbeats go on. The answer to the first one after its return names the index at which the leader continues."""
    lab = Lab(3)
    lab.elect(1)
    lab.run(100)
    lab.stop(3)
    for _ in range(5):
        lab.propose(1)
        lab.run(500)
    assert lab.cores[1].status().commit == 7
    lab.start(3)
    lab.run(200)
    assert lab.terms(3) == lab.terms(1)


@pytest.mark.parametrize("pre", [False, True])
def test_section_5_5_vote_requests_are_idempotent(pre: bool) -> None:
    """The same request twice gets the same answer, and changes nothing the second time."""
    core = make_core(1, 3)
    answers = []
    for _ in range(2):
        core.step(vote_request(2, 1, 2, (1, 1), pre=pre), at(0))
        out = drain(core)
        answers += [*out.messages, *out.after_sync]
    assert answers[0] == answers[1]
    assert out.hard_state is None


def test_section_5_6_timing_one_lost_heartbeat_costs_no_election() -> None:
    """Broadcast time << election timeout: the options refuse a heartbeat above half the least timeout, and with the
    defaults three in a row may be lost."""
    with pytest.raises(ValueError, match="one lost heartbeat"):
        Options(heartbeat_ms=151, election_timeout_min_ms=300)
    lab = Lab(3)
    lab.elect(1)
    lab.run(100)
    for _ in range(10):
        lab.isolate(1)
        lab.run(3 * 60)
        lab.heal()
        lab.run(2 * 60)
    assert lab.leaders() == [1]
    assert lab.cores[1].status().term == 2


@pytest.mark.parametrize(
    ("grants", "role"),
    [([4, 5], RoleName.PRE_CANDIDATE), ([2], RoleName.PRE_CANDIDATE), ([2, 4], RoleName.CANDIDATE)],
)
def test_section_6_joint_consensus_needs_a_majority_of_each_side(grants: list[int], role: RoleName) -> None:
    """Node 1 is in both sides, {1, 4, 5} and {1, 2, 3}: neither majority alone elects."""
    members = configuration(5)
    joint = Configuration(members.members, (1, 4, 5), (1, 2, 3))
    core = make_core(1, 5, members=joint)
    core.tick(at(300))
    for sender in grants:
        core.step(RequestVoteReply(sender=sender, to=1, term=1, request_term=2, granted=True, pre=True), at(300))
    assert core.status().role is role


def test_section_6_joint_consensus_commits_on_a_majority_of_each_side() -> None:
    """All of one side are not enough."""
    members = configuration(5)
    core = make_core(1, 5, members=Configuration(members.members, (1, 4, 5), (1, 2, 3)))
    lead(core)
    for sender in (4, 5):
        reply(core, sender, match=2)
    assert core.status().commit == 1
    reply(core, 3, match=2)
    assert core.status().commit == 2
