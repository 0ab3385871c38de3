"""What a node knows after a set of peers' reports does not depend on their order, and only rises meanwhile.

Each network delivers them in another order. A table that one order leaves lower than another decides by chance.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import Phase, example, given, settings, strategies as st

from raftlog.cluster.protocol.digest_points import POINTS_KEPT, DigestPoints, Diverged
from raftlog.cluster.protocol.disk_reports import DiskReport, Disks, FullLog, Reports, Rules
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.consensus import recall
from raftlog.raft.consensus.state import Memory
from raftlog.raft.consensus.status import FollowerView
from raftlog.raft.messages import RecallReply
from tests.raft.consensus.test_recall import THREE as MEMBERS, a_core, connect, outputs, reply_of
from tests.raft.lab import at, log_of

VOTERS = (1, 2, 3, 4, 5)
QUICK = settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])
"""Without making a failure smaller, which takes a minute: its values are small enough to read."""
INDEXES = st.integers(1, POINTS_KEPT)
VALUES = st.sampled_from([b"right", b"right", b"right", b"wrong"])
POINT = st.tuples(st.sampled_from(VOTERS[1:]), INDEXES)


def disk(node: int) -> str:
    """The incarnation of that node's disk."""
    return f"{node:032x}"


def members(outgoing: bool) -> Configuration:
    """Five members: all vote, or they do on either side of a joint configuration."""
    named = tuple(Member(node, disk(node), "", "") for node in VOTERS)
    return Configuration(named, VOTERS[:3], VOTERS[2:]) if outgoing else Configuration(named, VOTERS)


def judged(points: DigestPoints, configuration: Configuration) -> object:
    """The judgement, or where the replica differs."""
    try:
        return points.judge(configuration, 1)
    except Diverged as diverged:
        return "diverged", diverged.index


def two_orders(values: list[Any]) -> st.SearchStrategy[tuple[list[Any], list[Any]]]:
    """Two orders of the same values."""
    return st.tuples(st.permutations(values), st.permutations(values))


@QUICK
@given(
    st.dictionaries(POINT, VALUES, max_size=20).flatmap(lambda known: two_orders(list(known.items()))),
    st.dictionaries(INDEXES, VALUES),
    st.booleans(),
)
def test_digest_points_agree_on_the_same_whatever_the_order_of_the_reports(
    orders: tuple[list[Any], list[Any]], own: dict[int, bytes], is_joint: bool
) -> None:
    """The newest agreed point and the point that differs; and the agreed point never goes back."""
    found, configuration = [], members(is_joint)
    for order in orders:
        points, agreed = DigestPoints(1), 0
        for index in sorted(own):
            points.applied(index, own[index])
        for (peer, index), value in order:
            points.take(peer, disk(peer), ((index, value),))
            judged(points, configuration)
            assert points.agreed >= agreed
            agreed = points.agreed
        found.append(judged(points, configuration))
    assert found[0] == found[1]


@QUICK
@given(
    st.dictionaries(st.integers(1, 3 * POINTS_KEPT), VALUES, min_size=POINTS_KEPT).flatmap(
        lambda known: two_orders(list(known.items()))
    )
)
def test_the_newest_points_of_a_peer_are_kept_whatever_the_order_of_its_reports(
    orders: tuple[list[Any], list[Any]],
) -> None:
    """A late report of an older point drives no newer one out."""
    newest = sorted(orders[0])[-POINTS_KEPT:]
    for order in orders:
        points = DigestPoints(1)
        for index, value in order:
            points.take(2, disk(2), ((index, value),))
        for index, value in newest:
            points.applied(index, value)
        everyone = Configuration(tuple(Member(node, disk(node), "", "") for node in (1, 2)), (1, 2))
        assert all(points.is_reported(everyone, index) for index, _ in newest)


REPORT = st.builds(
    DiskReport,
    st.booleans(),
    st.sampled_from([0, 5, 10_000]),
    st.just(0),
    st.sampled_from([0, 7]),
    st.sampled_from([0, 1_000, 200_000]),
)
ROOM = DiskReport(free_bytes=10_000)
RULES = Rules(full_pause_ms=3_000, slow_us=50_000, slow_factor=4, slow_pause_ms=60_000)


@QUICK
@given(
    st.dictionaries(st.sampled_from(VOTERS), REPORT),
    REPORT,
    st.lists(st.sampled_from([90, 100]), min_size=4, max_size=4),
    st.sets(st.sampled_from(VOTERS[1:])),
    st.randoms(use_true_random=False),
    st.booleans(),
    st.booleans(),
)
@example(
    dict.fromkeys(VOTERS[1:], ROOM), ROOM._replace(is_full=True), [100] * 4, set(VOTERS[1:]), Random(0), False, False
)
def test_a_leader_decides_the_same_about_disks_whatever_the_order_of_the_reports(
    reports: dict[int, DiskReport],
    own: DiskReport,
    matches: list[int],
    answering: set[int],
    random: Random,
    is_joint: bool,
    cannot_apply: bool,
) -> None:
    """Whether and to whom it hands over, whether it takes writes, and which followers get no entries."""
    views = zip(VOTERS[1:], matches, strict=True)
    followers = [FollowerView(node, match, 100, "replicate", 0, 0, 0, 0) for node, match in views]
    decided = []
    for _ in range(2):
        heard, order = Reports(), list(reports.items())
        random.shuffle(order)
        for node, report in order:
            heard.take(node, report)
        asked = random.sample(VOTERS, len(VOTERS))
        disks = Disks(
            node=1,
            configuration=members(is_joint),
            reports=heard.of(asked) | {1: own},
            followers=random.sample(followers, len(followers)),
            answering=random.sample(sorted(answering), len(answering)),
            cannot_apply=cannot_apply,
        )
        holds = disks.holds(FullLog(50, 100, 10, 4_096, lambda index: 99 - index))
        decided.append((disks.handover(RULES, {}, 0), disks.best(), disks.takes_writes, disks.has_room, holds))
    assert decided[0] == decided[1]


PLACE = st.tuples(st.integers(0, 4), st.integers(0, 9))
MEMORY = st.builds(
    reply_of, st.sampled_from([2, 3]), promised=st.integers(0, 5), acked=PLACE, led=PLACE, term=st.integers(1, 5)
)


@QUICK
@example(
    (
        reply_of(2, promised=1, acked=(4, 4), led=(2, 3), term=4),
        reply_of(2, promised=5, acked=(3, 6), led=(3, 6), term=3),
    ),
    False,
)
@given(st.tuples(MEMORY, MEMORY), st.booleans())
def test_a_started_node_stands_the_same_whatever_the_order_of_its_peers_memories(
    replies: tuple[RecallReply, RecallReply], is_doubled: bool
) -> None:
    """Term, vote, floor and the log that it may elect at least, after both peers reported. A report that comes again
    changes nothing. Term and floor only rise."""
    first, second = replace(replies[0], sender=2), replace(replies[1], sender=3)
    stands = []
    for order in ((first, second), (second, first, *([first] if is_doubled else []))):
        core = a_core(log_of(MEMBERS, 2, 2), 2)
        for peer in (2, 3):
            connect(core, peer, run=10 * peer, last=(1, 1), term=1)
        before = (core.state.term, core.state.recall.floor)
        for message in order:
            core.step(message, at(3))
            outputs(core, 3)
            after = (core.state.term, core.state.recall.floor)
            assert after >= before
            before = after
        state = core.state
        last = state.log.last
        stands.append(
            (state.term, state.vote, state.recall.floor, max((last.term, last.index), recall.has_promised(state)))
        )
    assert stands[0] == stands[1]


@QUICK
@given(st.lists(PLACE, max_size=8).flatmap(two_orders))
def test_a_memory_of_a_disk_only_rises_whatever_the_order_of_its_promises(
    orders: tuple[list[tuple[int, int]], ...],
) -> None:
    """Also across two processes of the disk: what the first one promised stays."""
    found = []
    for order in orders:
        memory = Memory()
        memory.begin(1)
        for term, index in order:
            before = memory.term_now, memory.acked_now
            memory.note(term, index)
            assert (memory.term_now, memory.acked_now) >= before
            assert memory.acked_now >= before[1]
        memory.begin(2)
        found.append((memory.term, memory.acked))
    assert found[0] == found[1]
