"""What a leader decides from the reports of all disks: when it hands over and to whom, whom it sends no entries."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from raftlog.cluster.protocol.disk_reports import (
    CLOCK_AGE_S,
    SLOT_S,
    SLOTS,
    DiskReport,
    Disks,
    FullLog,
    Handover,
    Reports,
    Rules,
    SyncTimes,
    Why,
    all_lacks,
    decode_report,
    encode_report,
    majority_clock,
)
from raftlog.raft.codec.checks import INDEX_MAX, Corrupt
from raftlog.raft.codec.frame import FRAME_DISK, Frame, FrameDecoder, encode_frame
from raftlog.raft.configuration import Configuration
from raftlog.raft.consensus.progress import Hold
from raftlog.raft.consensus.status import FollowerView
from raftlog.raft.types import NodeId
from tests.raft.lab import configuration

RULES = Rules(full_pause_ms=3_000, slow_us=50_000, slow_factor=4, slow_pause_ms=60_000)
ROOM = DiskReport(free_bytes=1_000_000, sync_us=1_000)
FULL = DiskReport(is_full=True, lacks_bytes=12_345_678)
SLOW = ROOM._replace(sync_us=200_000)


def disks(
    reports: dict[NodeId, DiskReport],
    *,
    voters: int = 3,
    matches: dict[NodeId, int] | None = None,
    silent: Collection[NodeId] = (),
    members: Configuration | None = None,
) -> Disks:
    """What node 1, the leader, knows; followers have everything unless `matches` says otherwise."""
    members = members or configuration(voters)
    followers = [
        FollowerView(peer, (matches or {}).get(peer, 100), 100, "replicate", 0, 0, 0, 0) for peer in members.peers(1)
    ]
    answering = [each.node for each in followers if each.node not in silent]
    return Disks(node=1, configuration=members, reports=reports, followers=followers, answering=answering)


def log_of(snapshot_bytes: int, *, trim_index: int = 7, begun: Mapping[int, int] = {}) -> FullLog:
    """The log of that leader: so many segments begin after an index."""
    return FullLog(trim_index, 100, snapshot_bytes, 20_000, lambda index: begun.get(index, 0))


# ---------------------------------------------------------------------------------------------------------------
# Handing over.


@pytest.mark.parametrize(
    ("reports", "matches", "silent", "to"),
    [
        ({1: ROOM, 2: ROOM, 3: ROOM}, {}, [], None),
        ({1: FULL, 2: ROOM, 3: ROOM}, {2: 90, 3: 100}, [], 3),  # the most caught up
        ({1: FULL, 2: ROOM, 3: FULL}, {}, [], None),  # it would have no majority with room
        ({1: FULL, 2: ROOM, 3: ROOM}, {2: 90, 3: 100}, [3], None),  # nor here
        ({1: FULL, 2: ROOM}, {2: 90, 3: 100}, [], 2),  # of an older peer nothing is known: it is no target, and counts
        ({1: FULL}, {}, [], None),
        ({1: FULL, 2: FULL, 3: FULL}, {}, [], None),
    ],
)
def test_a_full_leader_hands_over_to_the_most_caught_up_voter_with_room(
    reports: dict[NodeId, DiskReport], matches: dict[NodeId, int], silent: list[NodeId], to: NodeId | None
) -> None:
    """Never to a full disk, to one that it knows nothing of, or to a silent node; and only if a majority has room."""
    found = disks(reports, matches=matches, silent=silent).handover(RULES, {}, 0)
    assert found == (None if to is None else Handover(Why.FULL, to))


@pytest.mark.parametrize(("silent", "to"), [([], 3), ([3], 2), ([2, 3], None)])
def test_a_leader_that_cannot_write_what_is_committed_hands_over_to_a_full_voter_that_has(
    silent: list[NodeId], to: NodeId | None
) -> None:
    """The leader won the election with entries in memory for which its disk has no room. A leader applies only what its
    disk has. So this one answers no read, and applies no trim. No majority has room."""
    found = disks({1: FULL, 2: FULL, 3: FULL}, matches={2: 90, 3: 100}, silent=silent)
    assert found.handover(RULES, {}, 0) is None
    found = replace(found, cannot_apply=True)
    assert found.handover(RULES, {}, 0) == (None if to is None else Handover(Why.FULL, to))


def test_a_full_follower_that_is_the_most_caught_up_is_no_target() -> None:
    """Of five: node 2 has everything and no room."""
    reports = {1: FULL, 2: FULL, 3: ROOM, 4: ROOM, 5: ROOM}
    assert disks(reports, voters=5, matches={2: 100, 3: 80, 4: 90, 5: 70}).best() == 4


def test_learners_and_voters_that_leave_are_no_targets() -> None:
    """A learner cannot lead, and one that is being replaced should not."""
    members = configuration(4, learners=(4,))
    found = disks({1: FULL, 2: FULL, 3: ROOM, 4: ROOM}, members=members, matches={3: 10})
    assert found.best() == 3
    assert found.handover(RULES, {}, 0) is None  # voters 1 and 2 are full


@pytest.mark.parametrize(
    ("why", "to"), [(Why.FULL, [2, 3]), (Why.SLOW, [2])], ids=["a full disk: each voter once", "a slow disk: once"]
)
def test_there_is_a_pause_between_two_hand_overs(why: Why, to: list[NodeId]) -> None:
    """However often the process leads meanwhile. A full leader does not wait for a voter that did not take over."""
    found = disks({1: FULL if why is Why.FULL else SLOW, 2: ROOM, 3: ROOM})
    pause_ms = RULES.full_pause_ms if why is Why.FULL else RULES.slow_pause_ms
    step_ms = pause_ms // 50
    last_ms: dict[Handover, int] = {}
    begun = []
    for now_ms in range(0, 3 * pause_ms, step_ms):
        if (handover := found.handover(RULES, last_ms, now_ms)) is not None:
            last_ms[handover] = now_ms
            begun.append((now_ms, handover))
    wanted = [(at_ms, Handover(why, each)) for at_ms in range(0, 3 * pause_ms, pause_ms) for each in to]
    assert begun == [(at_ms + step_ms * to.index(each.to), each) for at_ms, each in wanted]


@pytest.mark.parametrize(
    ("own_us", "others_us", "to"),
    [
        (200_000, (1_000, 1_000), 2),
        (200_000, (50_001, 1_000), None),  # one of the others is nearly as slow: a majority would wait for it
        (200_000, (200_000, 200_000), None),  # all are slow
        (49_000, (100, 100), None),  # slower than the others, but not slow
        (200_000, (0, 1_000), None),  # of one nothing is known
        (0, (1_000, 1_000), None),
    ],
)
def test_a_slow_leader_hands_over_where_a_majority_is_much_faster(
    own_us: int, others_us: tuple[int, int], to: NodeId | None
) -> None:
    """Not because all are slow, and not to wait for another slow disk instead."""
    reports = {node: ROOM._replace(sync_us=us) for node, us in zip((1, 2, 3), (own_us, *others_us), strict=True)}
    found = disks(reports).handover(RULES, {}, 0)
    assert found == (None if to is None else Handover(Why.SLOW, to))


def test_a_slow_leader_hands_over_to_a_fast_disk_with_room() -> None:
    """Of five: node 2 is slow too, node 3 is full; node 4 lacks a little, and leads."""
    reports = {1: SLOW, 2: SLOW, 3: FULL._replace(sync_us=1_000), 4: ROOM, 5: ROOM}
    found = disks(reports, voters=5, matches={2: 100, 3: 100, 4: 99, 5: 98})
    assert found.handover(RULES, {}, 0) == Handover(Why.SLOW, 4)


# ---------------------------------------------------------------------------------------------------------------
# Followers and writes.


def test_full_followers_are_held_while_a_majority_can_do_without_them() -> None:
    """They take entries up to what lets go of something, or to what they ask for, and a snapshot that fits."""
    full = FULL._replace(free_bytes=5_000)
    found = disks({1: ROOM, 2: ROOM, 3: full})
    assert found.takes_writes
    assert found.holds(log_of(5_000)) == {3: Hold(7, takes_snapshot=True)}
    assert found.holds(log_of(5_001)) == {3: Hold(7, takes_snapshot=False)}
    asking = disks({1: ROOM, 2: ROOM, 3: full._replace(takes_to=9)})
    assert asking.holds(log_of(5_001)) == {3: Hold(9, takes_snapshot=False)}
    assert disks({1: ROOM, 2: ROOM, 3: ROOM}).holds(log_of(0)) == {}


def test_a_snapshot_on_its_way_to_a_full_follower_goes_on_while_it_takes_the_space_that_was_free() -> None:
    """One half was written. The free space is enough for the other half."""
    found = disks({1: ROOM, 2: ROOM, 3: FULL._replace(free_bytes=2_500)})
    coming = [replace(each, snapshot_index=9, snapshot_bytes=2_500, snapshot_total=5_000) for each in found.followers]
    assert found.holds(log_of(5_000)) == {3: Hold(7, takes_snapshot=False)}
    assert replace(found, followers=coming).holds(log_of(9_000)) == {3: Hold(7, takes_snapshot=True)}


@pytest.mark.parametrize(
    ("begun", "lacks_bytes", "free_bytes", "is_far"),
    [
        (0, 20_000, 5_000, False),  # what it lacks goes to the segment that it has
        (1, 0, 5_000, False),
        (1, 1, 5_000, True),  # entries that were under way took a segment of its reserve
        (2, 0, 5_000, True),
        (2, 0, 4_999, False),  # neither fits: the entries may
    ],
)
def test_a_full_follower_that_lacks_more_than_its_reserve_takes_gets_a_snapshot(
    begun: int, lacks_bytes: int, free_bytes: int, is_far: bool
) -> None:
    """It lacks what the leader's newest segments have, and has a reserve of two segments."""
    full = FULL._replace(lacks_bytes=lacks_bytes, free_bytes=free_bytes)
    found = disks({1: ROOM, 2: ROOM, 3: full}, matches={2: 100, 3: 60})
    hold = Hold(70, free_bytes >= 5_000, is_far)
    assert found.holds(log_of(5_000, trim_index=70, begun={60: begun})) == {3: hold}


def test_without_a_majority_with_room_a_full_follower_that_is_far_behind_gets_a_snapshot() -> None:
    """Node 3 was held while node 2 had room. The entries would fill its reserve, and node 2 may have none left. Where
    the leader has no newer snapshot, node 3 gets the entries."""
    full = FULL._replace(lacks_bytes=0, free_bytes=5_000)
    log = log_of(5_000, trim_index=50, begun={60: 2})
    found = disks({1: ROOM, 2: full, 3: full}, matches={2: 100, 3: 60})
    assert found.holds(log) == {3: Hold(100, takes_snapshot=True, is_far=True)}
    assert found.holds(log._replace(reach=60)) == {}


@pytest.mark.parametrize(("reports", "silent"), [({1: ROOM, 2: FULL, 3: FULL}, []), ({1: ROOM, 2: ROOM, 3: FULL}, [2])])
def test_no_writes_are_taken_that_only_the_reserve_of_a_full_follower_could_commit(
    reports: dict[NodeId, DiskReport], silent: list[NodeId]
) -> None:
    """Then no follower is held: entries in the log already, and entries that free space, are committed with that
    reserve.
    """
    found = disks(reports, silent=silent)
    assert not found.takes_writes
    assert found.holds(log_of(0)) == {}


def test_without_a_full_disk_silence_refuses_no_write() -> None:
    """A leader without answers steps down by itself; an older peer counts as one with space."""
    assert disks({1: ROOM}, silent=[2, 3]).takes_writes
    assert disks({1: ROOM, 3: FULL}).takes_writes


def test_both_majorities_of_a_joint_configuration_need_room() -> None:
    """Voters 1, 2, 3 come, 1, 4, 5 go: with 4 and 5 full the old side has no majority with room."""
    five = configuration(5)
    joint = Configuration(five.members, (1, 2, 3), (1, 4, 5))
    room = dict.fromkeys(range(1, 6), ROOM)
    assert disks(room, members=joint).has_room
    assert not disks(room | {4: FULL, 5: FULL}, members=joint).takes_writes
    assert disks(room | {3: FULL, 5: FULL}, members=joint).takes_writes


def test_missing_disk_space_is_named_by_node() -> None:
    """In an order that does not change."""
    small = FULL._replace(lacks_bytes=4_200)
    reports = {3: small, 1: FULL, 2: ROOM, 4: FULL._replace(lacks_bytes=0)}
    sent = "node 1 lacks 12.3 MB, node 3 lacks 4.2 kB, node 4 has found no room, and looks for it again"
    assert all_lacks(reports) == sent


# ---------------------------------------------------------------------------------------------------------------
# How long syncs take.


def run(times: SyncTimes, *slots: tuple[int, float], start_s: float = 0.0) -> float:
    """Goes through slots of so many syncs that took so long each; when it ends."""
    now_s, syncs, seconds = start_s, 0, 0.0
    times.look(now_s, syncs, seconds, 0.0)
    for count, each_s in slots:
        syncs, seconds, now_s = syncs + count, seconds + count * each_s, now_s + SLOT_S
        times.look(now_s, syncs, seconds, 0.0)
    return now_s


def test_a_short_stall_does_not_make_a_disk_slow_and_a_long_one_does() -> None:
    """Two seconds among five of a fast disk change nothing, three and a half do. It is rounded down."""
    fast, stall = (500, 0.001), (2, 0.25)
    times = SyncTimes()
    run(times, *[fast] * 10)
    assert 750 < times.median_us <= 1_000
    run(times := SyncTimes(), *[fast] * 10, *[stall] * 4)
    assert 750 < times.median_us <= 1_000
    run(times := SyncTimes(), *[fast] * 10, *[stall] * 7)
    assert 187_500 < times.median_us <= 250_000


def test_an_idle_disk_makes_no_leader_slow_and_still_reports_its_few_syncs() -> None:
    """A few syncs within five seconds are too few to hand over for, but enough to compare with; none says nothing."""
    times = SyncTimes()
    run(times, *[(0, 0.0), (1, 0.3)] * 5)
    assert times.median_us == 0
    assert 225_000 < times.any_us <= 300_000
    run(times := SyncTimes(), *[(5, 0.1)] * SLOTS, (1, 0.001), *[(0, 0.0)] * (SLOTS - 1))
    assert times.median_us == 0
    assert 750 < times.any_us <= 1_000
    run(times := SyncTimes(), *[(5, 0.1)] * SLOTS, *[(0, 0.0)] * SLOTS)
    assert (times.median_us, times.any_us) == (0, 0)


def test_syncs_that_take_longer_than_a_slot_are_seen() -> None:
    """One after the other takes 1.4 seconds: in most slots none ends, and the one under way counts."""
    times = SyncTimes()
    for tenths in range(101):
        now_s = tenths / 10
        ended = int(now_s / 1.4)
        times.look(now_s, ended, ended * 1.4, now_s - ended * 1.4)
    assert 750_000 < times.median_us <= 1_400_000


# ---------------------------------------------------------------------------------------------------------------
# The frame.


def only_frame(data: bytes) -> Frame:
    """The one frame of these bytes."""
    (frame,) = FrameDecoder().feed(data)
    return frame


@given(st.builds(DiskReport, st.booleans(), *[st.integers(0, 1 << 62)] * 5))
def test_a_disk_report_decodes_to_the_encoded_value(report: DiskReport) -> None:
    """Whatever its numbers are; some file systems have 8 EiB of room, and a frame's numbers end at INDEX_MAX."""
    expected = DiskReport(report.is_full, *[min(number, INDEX_MAX) for number in report[1:]])
    assert decode_report(only_frame(encode_report(report))) == expected


@pytest.mark.parametrize(
    "header", [[], [True, 1, 2, 3], [1, 1, 2, 3, 4], [True, 1, 2, 3, -4], [True, 1, 2, 3, True], [True, 1, 2, "3", 4]]
)
def test_a_report_of_another_form_is_corrupt(header: list[object]) -> None:
    """Too short, wrong types, negative numbers."""
    with pytest.raises(Corrupt, match="disk report"):
        decode_report(only_frame(encode_frame(FRAME_DISK, header)))


def test_news_that_others_act_on_is_urgent() -> None:
    """Fullness, and what a full disk asks for; free bytes and times of syncs are not."""
    assert ROOM.is_urgent_after(None)
    assert FULL.is_urgent_after(ROOM)
    assert FULL._replace(takes_to=5).is_urgent_after(FULL)
    assert not ROOM._replace(free_bytes=7, sync_us=9).is_urgent_after(ROOM)


# ---------------------------------------------------------------------------------------------------------------
# Clocks.

NOON = 1_750_000_000_000
HOUR = 3_600_000


@pytest.mark.parametrize(
    ("clocks", "majority", "to"),
    [
        ({1: NOON, 2: NOON + 900, 3: NOON - 700}, NOON, None),
        ({1: NOON + 2 * HOUR, 2: NOON, 3: NOON + 10}, NOON + 10, 2),  # hands over to the first of equal voters
        ({1: NOON - 2 * HOUR, 2: NOON, 3: NOON}, NOON, 2),
        ({1: NOON, 2: NOON + 2 * HOUR, 3: NOON}, NOON, None),  # a follower is wrong
        ({1: NOON + 2 * HOUR, 2: NOON}, NOON, 2),  # node 3 is silent: the lower one of two counts
        ({1: NOON + 2 * HOUR}, 0, None),  # no majority is known: nothing gets worse than without these reports
        ({1: NOON, 2: NOON + HOUR, 3: NOON + 2 * HOUR}, NOON + HOUR, 2),
    ],
)
def test_a_leader_whose_clock_differs_from_a_majoritys_hands_over(
    clocks: dict[NodeId, int], majority: int, to: NodeId | None
) -> None:
    """To a voter whose clock agrees with it. Within the pause it does not ask that voter again."""
    found = replace(disks({1: ROOM, 2: ROOM, 3: ROOM}), clocks=clocks)
    assert majority_clock(found.configuration, clocks) == majority
    handover = found.handover(RULES, {}, 0)
    assert handover == (None if to is None else Handover(Why.CLOCK, to))
    if handover is not None:
        assert found.handover(RULES, {handover: 1}, 2) != handover


def test_a_clock_is_reported_each_second_and_goes_on_between_reports() -> None:
    """An old one counts no more. Only the clock in it makes a report no other one; a peer without it sends none."""
    reports = Reports()
    reports.sent(2, ROOM._replace(wall_ms=NOON), 10.0)
    assert not reports.is_due(2, ROOM._replace(wall_ms=NOON + 500), 10.5)
    assert reports.is_due(2, ROOM._replace(wall_ms=NOON + 1_000), 11.0)
    (frame,) = FrameDecoder().feed(encode_report(ROOM._replace(wall_ms=NOON)))
    reports.take(2, decode_report(frame), 20.0)
    reports.take(3, ROOM, 20.0)
    assert reports.of((2, 3)) == {2: ROOM, 3: ROOM}
    assert reports.clocks((2, 3), 21.5) == {2: NOON + 1_500}
    assert reports.clocks((2, 3), 20.0 + CLOCK_AGE_S + 0.1) == {}
