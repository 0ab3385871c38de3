"""What the core concludes from links that open and close, and from dials that are refused (raft/consensus/links.py)."""

import pytest

from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.events import BecamePreCandidate
from raftlog.raft.messages import AppendEntries, RequestVoteReply
from raftlog.raft.options import Options
from tests.raft.lab import append, at, drain, lead, make_core, reply, vote_request

CLOSED_MS, REFUSED_MS = Options().link_closed_delay_min_ms, Options().link_refused_delay_min_ms


def follower(nodes: int = 3, *, closed_ms: int = 10) -> RaftCore:
    """Node 1 of so many, all connected to it, follows node 2, whose link closes; delays are the least."""
    core = make_core(1, nodes)
    for peer in range(2, nodes + 1):
        core.link_opened(peer, f"{peer:032x}", 1, at(0))
    append(core, prev=(1, 1), term=1, sender=2)
    core.link_closed(2, at(closed_ms))
    return core


def asks(core: RaftCore, now_ms: int) -> bool:
    """Whether a tick at that time begins a pre-vote."""
    core.tick(at(now_ms))
    return any(isinstance(event, BecamePreCandidate) for event in drain(core, now_ms).events)


@pytest.mark.parametrize("heartbeat_ms", [60, 200])
def test_a_close_seen_behind_the_new_links_first_heartbeat_waits_for_the_next_one(heartbeat_ms: int) -> None:
    """All links break and open again. The follower reads the leader's heartbeat from the new link before it sees that
    the old one closed. It asks for no votes before the leader's next heartbeat is due twice over."""
    core = make_core(
        1, 3, options=Options(heartbeat_ms=heartbeat_ms, election_timeout_min_ms=1_000, election_timeout_max_ms=2_000)
    )
    for peer in (2, 3):
        core.link_opened(peer, f"{peer:032x}", 1, at(0))
    append(core, prev=(1, 1), term=1, sender=2)
    core.link_opened(2, f"{2:032x}", 1, at(10))
    append(core, prev=(1, 1), term=1, sender=2)
    core.link_closed(2, at(10))
    assert not asks(core, 10 + 2 * heartbeat_ms - 1)


def pre_vote(core: RaftCore, last: tuple[int, int], now_ms: int) -> bool:
    """Whether node 1 or 3 grants the other one a pre-vote."""
    core.step(vote_request(4 - core.state.node, core.state.node, 2, last, pre=True, link_closed=True), at(now_ms))
    (answer,) = [each for each in drain(core, now_ms).messages if isinstance(each, RequestVoteReply)]
    return answer.granted


def asking(node: int, nodes: int = 3) -> RaftCore:
    """That node of so many, connected to all, asks for pre-votes: its leader was node 2, which was killed."""
    core = make_core(node, nodes)
    for peer in set(range(1, nodes + 1)) - {node}:
        core.link_opened(peer, f"{peer:032x}", 1, at(0))
    append(core, prev=(1, 1), term=1, sender=2)
    core.link_closed(2, at(10))
    core.link_refused(2, at(10))
    assert asks(core, 10 + REFUSED_MS)
    return core


def test_of_two_simultaneous_candidates_only_the_lower_number_is_granted() -> None:
    """With two grants both would campaign and vote for themselves. The longer log goes before the lower number. A node
    whose question was answered, or that asks because no heartbeat came, has no more reason to refuse.
    """
    now_ms = 10 + REFUSED_MS
    assert pre_vote(asking(3), (1, 1), now_ms)
    assert not pre_vote(asking(1), (1, 1), now_ms)
    assert pre_vote(asking(1), (2, 1), now_ms)
    core = asking(1)
    core.step(RequestVoteReply(sender=3, to=1, term=1, request_term=2, granted=False, pre=True), at(now_ms))
    assert pre_vote(core, (1, 1), now_ms)
    core = asking(1)
    assert asks(core, core.next_deadline_ms())
    assert pre_vote(core, (1, 1), 2_000)


def test_a_candidate_asks_again_soon_when_no_answer_is_to_come() -> None:
    """Its votes were split: each voter that is connected has answered, one refused. While one that could grant has not
    answered, it waits for the election timeout: that voter's disk may be slow."""

    core = asking(1, 4)
    core.link_opened(9, f"{9:032x}", 1, at(20))  # no voter: it is not asked
    for voter in (3, 4):
        core.step(RequestVoteReply(sender=voter, to=1, term=1, request_term=2, granted=True, pre=True), at(50))
    drain(core, 50)
    for voter, due_ms in ((3, 350), (4, 60 + REFUSED_MS)):
        core.step(RequestVoteReply(sender=voter, to=1, term=2, request_term=2, granted=False, pre=False), at(60))
        assert core.next_deadline_ms() == due_ms
    assert asks(core, 60 + REFUSED_MS)
    for voter in (3, 4):
        core.step(RequestVoteReply(sender=voter, to=1, term=2, request_term=3, granted=False, pre=True), at(75))
    assert core.next_deadline_ms() == 60 + REFUSED_MS + 300, "it did not win the pre-vote"


def test_a_refused_dial_shortens_the_delay() -> None:
    """It says that the leader's process ended, in whichever order the two pieces of news come."""
    core = follower()
    core.link_refused(2, at(12))
    assert core.next_deadline_ms() == 12 + REFUSED_MS
    core.link_refused(2, at(15))
    assert core.next_deadline_ms() == 12 + REFUSED_MS  # news that is not new puts nothing off
    assert asks(core, 12 + REFUSED_MS)

    core = follower(closed_ms=14)
    core.link_refused(2, at(12))
    assert asks(core, 12 + REFUSED_MS)


def test_a_refused_dial_means_nothing_while_the_leader_is_heard() -> None:
    """A firewall may refuse one direction: without a closed link from the leader no node asks for votes."""
    core = make_core(1, 3)
    append(core, prev=(1, 1), term=1, sender=2)
    core.link_refused(2, at(5))
    assert not asks(core, 5 + REFUSED_MS)
    assert core.next_deadline_ms() == 300
    core.link_refused(3, at(50))
    assert core.next_deadline_ms() == 300


@pytest.mark.parametrize(("nodes", "closed", "is_gone"), [(3, [3], False), (5, [3], True), (5, [3, 4], False)])
def test_a_refused_dial_is_not_believed_where_the_links_of_other_voters_closed_too(
    nodes: int, closed: list[int], is_gone: bool
) -> None:
    """The network is the likelier reason, unless a majority kept its links. The longer delay holds then."""
    core = follower(nodes)
    for peer in closed:
        core.link_closed(peer, at(11))
        core.link_opened(peer, f"{peer:032x}", 1, at(12))  # too late: it closed
    core.link_refused(2, at(12))
    assert asks(core, 12 + REFUSED_MS) is is_gone
    assert is_gone or not asks(core, 9 + CLOSED_MS)
    assert is_gone or asks(core, 10 + CLOSED_MS)


def test_the_leaders_heartbeat_calls_both_delays_off() -> None:
    """A link that was dialled again binds as before, and refuses to help others."""
    core = follower()
    core.link_refused(2, at(10))
    append(core, prev=(1, 1), term=1, sender=2, now_ms=15)
    assert core.next_deadline_ms() == 315
    core.step(vote_request(3, 1, 2, (1, 1), pre=True, link_closed=True), at(16))
    (answer,) = [each for each in drain(core, 16).messages if isinstance(each, RequestVoteReply)]
    assert not answer.granted


def test_a_node_that_stood_still_reads_before_it_believes_old_news() -> None:
    """The tick comes an election timeout late: what the leader sent meanwhile may lie unread (pitfall 14: stale timers
    fire after a stall)."""
    core = follower()
    core.link_refused(2, at(10))
    assert not asks(core, 2_000)
    assert core.next_deadline_ms() == 2_300


def test_a_closed_link_of_another_follower_is_ignored() -> None:
    """Only the leader's link counts."""
    core = make_core(1, 3)
    append(core, prev=(1, 1), term=1, sender=2)
    before = core.next_deadline_ms()
    core.link_closed(3, at(10))
    assert core.next_deadline_ms() == before


@pytest.mark.parametrize("is_own", [True, False])
def test_a_leader_sends_a_heartbeat_when_a_link_opens(is_own: bool) -> None:
    """To that follower alone, whichever of the two dialled; and asks again what a closed link had in flight."""
    core = make_core(1, 3)
    lead(core)
    for peer in (2, 3):
        reply(core, peer, match=2, prev=2)
    drain(core)
    core.link_closed(2, at(400))
    assert drain(core, 400).messages == []
    if is_own:
        core.link_dialled(2, at(401))
    else:
        core.link_opened(2, f"{2:032x}", 1, at(401))
    out = drain(core, 401)
    assert {message.to for message in out.messages if isinstance(message, AppendEntries)} == {2}
    core.link_dialled(9, at(402))  # a node that this configuration does not name
    assert drain(core, 402).messages == []
