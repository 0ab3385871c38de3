"""What peers remember of a disk's promises, and how a node heals under a floor (raftlog.raft.consensus.recall)."""

from __future__ import annotations

import pytest

from raftlog.raft.configuration import Configuration
from raftlog.raft.consensus import recall
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.roles import Candidate, Leader
from raftlog.raft.consensus.state import become_follower
from raftlog.raft.events import AcknowledgedLost, Healed, PromisesLost, WentUnderFloor
from raftlog.raft.hello import Start
from raftlog.raft.messages import (
    AppendEntries,
    AppendEntriesReply,
    Message,
    Recall,
    RecallReply,
    RequestVoteReply,
)
from raftlog.raft.options import Options
from raftlog.raft.ready import Ready
from raftlog.raft.types import NOBODY, Entry, HardState, NodeId
from tests.raft.lab import append_entries, at, configuration, core_start, extend, log_of, log_start, vote_request

THREE = configuration(3)
OPTIONS = Options()
RUN = 77
WAITED_MS = recall.PATIENCE_TIMEOUTS * OPTIONS.election_timeout_max_ms
"""So long after its start a node waits for the memory of no voter any more."""


def disk_of(node: NodeId) -> str:
    """The incarnation that the configuration names."""
    return f"{node:032x}"


def a_core(
    entries: list[Entry],
    term: int,
    *,
    vote: NodeId = NOBODY,
    floor: int = 0,
    members: Configuration = THREE,
    node: NodeId = 1,
    kept: tuple[int, int] = (0, 0),
) -> RaftCore:
    """A node that starts with this log, and asks its peers."""
    return RaftCore(
        node,
        OPTIONS,
        core_start(HardState(term, vote, 1, floor), log_start(entries), members, incarnation=disk_of(node), kept=kept),
        random=lambda low, high: low,
        now=at(0),
        run=RUN,
    )


def connect(core: RaftCore, peer: NodeId, *, run: int, last: tuple[int, int], term: int, now_ms: int = 1) -> None:
    """A process of that peer connects; `last` is term and index."""
    start = Start(run=run, last_index=last[1], last_term=last[0], term=term, floor=0)
    core.link_opened(peer, disk_of(peer), 1, at(now_ms), start)


def outputs(core: RaftCore, now_ms: int) -> list[Ready]:
    """Everything it wants done, done at once."""
    done = []
    while (ready := core.ready()) is not None:
        done.append(ready)
        if ready.entries:
            core.persisted(ready.entries[-1].term, ready.entries[-1].index, at(now_ms))
        if ready.committed:
            core.applied(ready.committed[-1].index)
    return done


def sent(done: list[Ready]) -> list[Message]:
    """All messages of these, in order."""
    return [message for ready in done for message in (*ready.messages, *ready.messages_after_sync)]


def events_of(done: list[Ready], kind: type) -> list[object]:
    """The events of that kind."""
    return [event for ready in done for event in ready.events if isinstance(event, kind)]


def a_candidate() -> RaftCore:
    """Won the pre-vote with entry 1, and asks two voters for votes in term 2: nodes 2 and 3, runs 20 and 30."""
    core = a_core(log_of(THREE), 1)
    for peer in (2, 3):
        connect(core, peer, run=10 * peer, last=(1, 1), term=1)
        core.step(reply_of(peer), at(1))
    core.tick(at(2_000))
    outputs(core, 2_000)
    core.tick(at(2_000 + OPTIONS.election_timeout_max_ms // 2))
    grant(core, 2, pre=True)
    assert isinstance(core.state.role, Candidate)
    return core


def grant(core: RaftCore, peer: NodeId, *, pre: bool = False) -> list[Ready]:
    """That voter grants what the node asks for."""
    term = core.state.term
    core.step(RequestVoteReply(sender=peer, to=1, term=term, request_term=term + pre, granted=True, pre=pre), at(2_500))
    return outputs(core, 2_500)


def a_leader() -> RaftCore:
    """Leads term 2 of three with entries 1 to 2 committed on all; nodes 2 and 3 are connected, runs 20 and 30."""
    core = a_candidate()
    grant(core, 2)
    assert isinstance(core.state.role, Leader)
    acknowledge(core, 2)
    acknowledge(core, 3)
    return core


def acknowledge(core: RaftCore, peer: NodeId, match: int = 0) -> list[Ready]:
    """That follower has everything up to `match` (0: all there is)."""
    role = core.state.role
    assert isinstance(role, Leader)
    match = match or core.state.log.last.index
    core.step(
        AppendEntriesReply(
            sender=peer, to=1, term=core.state.term, success=True, match=match, prev_index=match, round=role.round
        ),
        at(2_600),
    )
    return outputs(core, 2_600)


def reject(core: RaftCore, peer: NodeId, prev: int, hint: tuple[int, int]) -> list[Ready]:
    """That follower has only what ends with `hint` (term, index)."""
    role = core.state.role
    assert isinstance(role, Leader)
    core.step(
        AppendEntriesReply(
            sender=peer,
            to=1,
            term=core.state.term,
            success=False,
            match=0,
            prev_index=prev,
            round=role.round,
            hint_index=hint[1],
            hint_term=hint[0],
        ),
        at(2_700),
    )
    return outputs(core, 2_700)


def reply_of(
    peer: NodeId,
    *,
    promised: int = 0,
    acked: tuple[int, int] = (0, 0),
    led: tuple[int, int] = (0, 0),
    healed: int = 0,
    term: int = 1,
    run: int = RUN,
    is_alone: bool = False,
    is_lost: bool = False,
) -> RecallReply:
    """What that peer remembers of this node."""
    return RecallReply(
        sender=peer,
        to=1,
        term=term,
        run=run,
        promised_term=promised,
        acked_term=acked[0],
        acked_index=acked[1],
        led_term=led[0],
        led_index=led[1],
        healed_index=healed,
        is_alone=is_alone,
        is_lost=is_lost,
    )


def told_by(core: RaftCore, peer: NodeId, run: int, floor: int = 0) -> RecallReply:
    """What that node answers to the process `run` of a peer."""
    core.step(Recall(sender=peer, to=1, term=1, run=run, floor=floor), at(3_000))
    (answer,) = [each for each in sent(outputs(core, 3_000)) if isinstance(each, RecallReply) and each.run == run]
    return answer


def test_a_leaders_memory_outlives_its_leadership() -> None:
    """The entry that a follower acknowledged, and the term of its vote, from before the process that asks."""
    core = a_leader()
    become_follower(core.state, 9, 3, "another term")
    outputs(core, 2_900)
    connect(core, 2, run=21, last=(1, 1), term=1)
    assert PromisesLost(2, 2, 2, 2, 1, 1) in events_of(outputs(core, 2_901), PromisesLost)
    answer = told_by(core, 2, 21)
    assert (answer.promised_term, answer.acked_term, answer.acked_index) == (2, 2, 2)


def test_promises_of_the_asking_process_are_no_loss() -> None:
    """A cut by a later leader takes acknowledged entries away, and the process knows that."""
    core = a_leader()
    connect(core, 2, run=20, last=(1, 1), term=1)
    assert not events_of(outputs(core, 2_901), PromisesLost)
    assert told_by(core, 2, 20).acked_index == 0


def test_a_new_process_of_a_follower_begins_with_nothing_proved() -> None:
    """Its answers to earlier messages do not count either; the old process's answers do not come any more."""
    core = a_leader()
    role = core.state.role
    assert isinstance(role, Leader)
    round_before = role.round
    connect(core, 2, run=21, last=(1, 1), term=2)
    assert (role.progress[2].match, role.progress[2].sent) == (0, 1)
    probes = [each for each in sent(outputs(core, 2_901)) if isinstance(each, AppendEntries) and each.to == 2]
    heartbeat, probe = probes  # a leader says at once that it lives when a link opens
    assert (heartbeat.prev_index, heartbeat.entries) == (0, ())
    assert (probe.prev_index, len(probe.entries)) == (1, 1)
    core.step(
        AppendEntriesReply(sender=2, to=1, term=2, success=True, match=2, prev_index=2, round=round_before), at(2_902)
    )
    assert role.progress[2].match == 0
    acknowledge(core, 2)
    assert role.progress[2].match == 2


def test_a_floor_is_lifted_only_with_all_that_the_leader_had() -> None:
    """That includes entries that the leader had not committed when the new process came: the old one may have
    acknowledged them.
    """
    core = a_leader()
    core.state.log.append(extend(core.state.log.last, 2), 0)
    outputs(core, 2_900)
    connect(core, 2, run=21, last=(1, 1), term=2)
    outputs(core, 2_901)
    acknowledge(core, 2, 2)
    assert told_by(core, 2, 21, floor=3).healed_index == 0
    acknowledge(core, 2, 3)
    assert told_by(core, 2, 21, floor=3).healed_index == 3


def lost() -> RaftCore:
    """Node 1 with entries up to 2@2 in term 2, which acknowledged 4@2, as node 2 reports."""
    core = a_core(log_of(THREE, 2), 2, vote=2)
    connect(core, 2, run=20, last=(2, 4), term=2)
    connect(core, 3, run=30, last=(2, 2), term=2)
    outputs(core, 1)
    core.step(reply_of(3), at(2))
    return core


def test_a_floor_is_durable_before_anything_is_promised() -> None:
    """It goes to the disk with the hard state, and answers wait for that."""
    core = lost()
    core.step(reply_of(2, promised=2, acked=(2, 4)), at(3))
    core.step(append_entries(prev=(2, 2), term=2), at(4))
    (ready,) = outputs(core, 4)
    assert ready.hard_state == HardState(2, 2, 1, 3)
    assert WentUnderFloor(3, 2, 4, 2, 2, 2) in ready.events
    assert not [each for each in ready.messages if isinstance(each, AppendEntriesReply)]
    assert [each for each in ready.messages_after_sync if isinstance(each, AppendEntriesReply)]


def test_a_node_that_lost_promises_votes_only_for_a_log_that_has_them() -> None:
    """Logs shorter than the acknowledged one get no vote, even if they are longer than its own."""
    for last, is_granted in (((3, 2), False), ((4, 2), True), ((3, 3), True)):
        core = lost()
        core.step(reply_of(2, promised=2, acked=(2, 4)), at(3))
        outputs(core, 3)
        core.step(vote_request(3, 1, 4, last), at(5_000))
        answers = [each for each in sent(outputs(core, 5_000)) if isinstance(each, RequestVoteReply)]
        assert [each.granted for each in answers] == [is_granted], last


def test_a_lost_vote_is_not_given_again() -> None:
    """A peer remembers a promise in a newer term: the node enters that term and votes for no other node in it. In its
    own term it gives no vote either, although its disk says that it has not voted.
    """
    core = lost()
    core.step(reply_of(2, promised=5), at(3))
    assert (core.state.term, core.state.vote, core.state.recall.floor) == (5, 1, 6)
    core = a_core(log_of(THREE, 2), 2)
    core.step(reply_of(2, promised=2), at(3))
    assert (core.state.term, core.state.vote, core.state.recall.floor) == (2, 1, 0)


@pytest.mark.parametrize(
    ("changes", "is_lifted"),
    [({}, True), ({"run": 5}, False), ({"term": 1}, False), ({"healed": 9}, False), ({"peer": 3}, False)],
)
def test_a_leader_lifts_the_floor_of_the_process_that_asked(changes: dict[str, int], is_lifted: bool) -> None:
    """It does not lift the floor of an earlier process, in another term, or beyond the durable entries; no other node
    lifts it.
    """
    core = lost()
    core.step(reply_of(2, promised=2, acked=(2, 4)), at(3))
    outputs(core, 3)
    entries = log_of(THREE, 2, 2, 2)[2:]
    core.step(append_entries(entries, prev=(2, 2), term=2), at(4))
    outputs(core, 4)
    assert core.state.recall.floor == 3
    values = {"healed": 4, "term": 2, "run": RUN} | {key: value for key, value in changes.items() if key != "peer"}
    core.step(reply_of(changes.get("peer", 2), promised=2, acked=(2, 4), **values), at(5))  # type: ignore[arg-type]
    done = outputs(core, 5)
    assert (core.state.recall.floor == 0) == is_lifted
    assert bool(events_of(done, Healed)) == is_lifted
    if is_lifted:
        assert HardState(2, 2, 1, 0) in [ready.hard_state for ready in done]


def test_of_two_voters_none_goes_under_a_floor() -> None:
    """Each of two voters is in every majority. So the other one has all committed entries, and refuses its vote to a
    log without them. Under a floor neither could be elected any more. The lost promises are reported all the same.
    """
    core = a_core(log_of(configuration(2), 2), 2, members=configuration(2))
    connect(core, 2, run=20, last=(2, 4), term=2)
    outputs(core, 1)
    core.step(reply_of(2, promised=2, acked=(2, 4), is_alone=True), at(3))
    assert core.state.recall.floor == 0
    assert len(events_of(outputs(core, 3), PromisesLost)) == 1
    core.step(reply_of(2, promised=2, acked=(2, 4), is_alone=True), at(4))
    assert not events_of(outputs(core, 4), PromisesLost), "the same report again"


def test_a_started_node_votes_once_the_voters_have_reported_their_memory() -> None:
    """It waits for a connected voter, for an unconnected one only an election timeout, and for none for ever."""

    def grants(core: RaftCore, now_ms: int) -> bool:
        core.step(vote_request(3, 1, core.state.term + 1, (9, 9), pre=True), at(now_ms))
        (answer,) = [each for each in sent(outputs(core, now_ms)) if isinstance(each, RequestVoteReply)]
        return answer.granted

    core = a_core(log_of(THREE, 2), 2)
    connect(core, 2, run=20, last=(2, 2), term=2)
    assert not grants(core, 10)
    assert not grants(core, OPTIONS.election_timeout_min_ms + 1)  # node 2 is there, and has not answered
    core.step(reply_of(2), at(11))
    assert not grants(core, 12)  # node 3 may still come
    assert grants(core, OPTIONS.election_timeout_min_ms + 1)
    core = a_core(log_of(THREE, 2), 2)
    connect(core, 2, run=20, last=(2, 2), term=2)
    assert grants(core, recall.PATIENCE_TIMEOUTS * OPTIONS.election_timeout_max_ms)


def test_a_rolled_back_leader_learns_the_acknowledgements_of_others() -> None:
    """It may have counted itself for that: while they are there it votes for no log without it, nor for its own."""
    follower = a_core(log_of(THREE), 1)
    connect(follower, 2, run=20, last=(1, 1), term=2)
    outputs(follower, 1)
    (entry,) = log_of(THREE, 2)[1:]
    follower.step(append_entries([entry], prev=(1, 1), term=2), at(WAITED_MS))
    outputs(follower, WAITED_MS)
    connect(follower, 2, run=21, last=(1, 1), term=1)
    answer = told_by(follower, 2, 21)
    assert (answer.promised_term, answer.acked_index, answer.led_term, answer.led_index) == (2, 0, 2, 2)

    core = a_core(log_of(THREE), 1)
    connect(core, 2, run=20, last=(2, 2), term=2)
    outputs(core, 1)
    core.step(reply_of(3), at(2))
    core.step(reply_of(2, led=(2, 2)), at(2))
    assert core.state.recall.floor == 0
    core.step(vote_request(3, 1, 2, (1, 1), pre=True), at(1_000))
    (refused,) = [each for each in sent(outputs(core, 1_000)) if isinstance(each, RequestVoteReply)]
    assert not refused.granted
    assert not recall.may_campaign(core.state)
    core.link_closed(2, at(1_001))
    assert recall.may_campaign(core.state)


def test_a_restarted_leader_waits_for_no_log_that_only_a_learner_has() -> None:
    """A learner's acknowledgement is no part of a majority, and the learner cannot be elected. So it reports none: else
    the restarted leader would refuse every log without it, and a cluster that needs this vote would have no leader."""
    members = configuration(4, learners=[1])
    learner = a_core(log_of(members), 1, members=members)
    connect(learner, 2, run=20, last=(1, 1), term=2)
    outputs(learner, 1)
    (entry,) = log_of(members, 2)[1:]
    learner.step(append_entries([entry], prev=(1, 1), term=2), at(WAITED_MS))
    outputs(learner, WAITED_MS)
    connect(learner, 2, run=21, last=(1, 1), term=1)
    answer = told_by(learner, 2, 21)
    assert (answer.promised_term, answer.led_term, answer.led_index) == (2, 0, 0)


def test_a_follower_that_rejects_acknowledged_entries_is_asked_once_a_heartbeat() -> None:
    """Earlier, the leader asked again in the same turn, without end. An answer of a new round proves the loss: the
    leader notes it, informs the follower, and asks from the end of its log.
    """
    core = a_leader()
    role = core.state.role
    assert isinstance(role, Leader)
    core.link_closed(2, at(2_650))
    core.state.recall.starts[2] = Start(run=20, last_index=1, last_term=1, term=1, floor=0)
    core.tick(at(3_000))
    outputs(core, 3_000)
    assert not [each for each in sent(reject(core, 2, 2, (1, 1))) if isinstance(each, AppendEntries)]
    assert role.progress[2].match == 2
    core.tick(at(3_100))
    outputs(core, 3_100)
    done = reject(core, 2, 2, (1, 1))
    assert events_of(done, AcknowledgedLost) == [AcknowledgedLost(2, 2, 1)]
    assert not [each for each in sent(done) if isinstance(each, AppendEntries)]
    core.tick(at(3_200))
    told = sent(outputs(core, 3_200))
    assert [each.acked_index for each in told if isinstance(each, RecallReply) and each.is_lost] == [2]
    assert [each.prev_index for each in told if isinstance(each, AppendEntries) and each.to == 2 and each.entries] == [
        1
    ]
    acknowledge(core, 2)
    core.tick(at(3_300))
    assert not [each for each in sent(outputs(core, 3_300)) if isinstance(each, RecallReply)]


def test_a_running_follower_informed_of_a_loss_goes_under_a_floor() -> None:
    """An answer that came late may have looked like a loss."""
    for index, is_lost in ((2, False), (3, True)):
        core = a_core(log_of(THREE, 2), 2)
        core.step(reply_of(2, promised=2, acked=(2, index), is_lost=True), at(3))
        assert bool(core.state.recall.floor) == is_lost


def test_no_more_disks_are_remembered_than_the_limit() -> None:
    """Disks that the configuration names are kept."""
    core = a_leader()
    for number in range(recall.MEMORIES_MAX + 5):
        core.link_opened(9, f"{number + 100:032x}", 1, at(1), Start(run=1, last_index=1, last_term=1, term=1, floor=0))
    assert len(core.state.recall.memories) == recall.MEMORIES_MAX
    assert {(2, disk_of(2)), (3, disk_of(3))} <= set(core.state.recall.memories)
