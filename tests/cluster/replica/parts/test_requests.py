"""What a node does with requests at the edges of leadership, on a node that is nothing but its waiting requests."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.config.settings import LimitSettings
from raftlog.cluster.protocol.digest_points import DigestPoints, Diverged
from raftlog.cluster.protocol.disk_reports import DiskReport, Reports
from raftlog.cluster.protocol.forward_frames import encode_forward, encode_points, encode_read_reply
from raftlog.cluster.protocol.log_frames import Question, QuestionKind
from raftlog.cluster.protocol.proposals import Pending
from raftlog.cluster.protocol.request import Inflight, RequestResult
from raftlog.cluster.protocol.waiters import IndexWaiters, Reads, ReadWaiter
from raftlog.cluster.replica import shutdown
from raftlog.cluster.replica.parts import digest_exchange, disk_exchange, link_events, reads, serving, writes
from raftlog.cluster.replica.state import ClockEntries, ReadIndexes, Writes
from raftlog.cluster.replica.upkeep import clock_entries, disk_space, snapshots
from raftlog.cluster.runtime.metrics import Metrics
from raftlog.raft.codec.frame import FrameDecoder
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.ready import ReadFailed, Ready
from raftlog.statemachine.digest import POINT_BYTES
from tests.cluster.nodes import append_block

FAR = 1e9


def replica_of(**parts: Any) -> Any:
    """Node 1, a follower of node 3 in term 4, which has applied 7 of 9 committed entries."""
    sent: list[tuple[int, bytes]] = []
    limits, metrics = LimitSettings(), Metrics()

    def send_bulk(peer: int, frame: bytes) -> bool:
        sent.append((peer, frame))
        return True

    replica = SimpleNamespace(
        name="node 1",
        identity=SimpleNamespace(node=1),
        is_leader=False,
        metrics=metrics,
        sent=sent,
        life=SimpleNamespace(is_stopping=False, is_fenced=False, is_over=False, only_here=""),
        core=SimpleNamespace(
            state=SimpleNamespace(
                leader=3,
                term=4,
                log=SimpleNamespace(committed=9, last=SimpleNamespace(index=9)),
                recall=SimpleNamespace(floor=0),
            )
        ),
        writes=Writes(Pending(limits, metrics, 1)),
        reads=ReadIndexes(Reads()),
        clock=ClockEntries(),
        links=SimpleNamespace(is_bulk_up=lambda peer: True, send_bulk=send_bulk),
        applier=SimpleNamespace(applied=7, grown_bytes=0, waiters=IndexWaiters()),
        settings=SimpleNamespace(limits=limits),
        members=SimpleNamespace(is_removed=False),
        watch=SimpleNamespace(points=DigestPoints(1)),
        syncer=SimpleNamespace(has_space=True),
        disks=SimpleNamespace(takes_writes=True, knows_time=True),
        driver=SimpleNamespace(wake=lambda: None, look_soon=lambda: None),
    )
    for name, part in parts.items():
        setattr(replica, name, part)
    replica.core.state.role = SimpleNamespace(is_leader=replica.is_leader)
    return replica


def write(*, peer: int = 0, number: int = 0) -> Inflight:
    """A write of a client of this node, or one that `peer` forwarded."""
    future: asyncio.Future[RequestResult] | None = None if peer else asyncio.get_running_loop().create_future()
    return Inflight(append_block(b"v"), 1, FAR, 0, 0, future, peer, number)


async def test_a_forwarded_write_is_not_passed_on_a_second_time() -> None:
    """Node 2 forwarded a write to this node, which does not lead any more: node 2 gets a refusal; this node's own write
    goes to the leader."""
    replica = replica_of()
    replica.writes.pending.submit(write(peer=2, number=70))
    own = write()
    replica.writes.pending.submit(own)
    writes.propose_or_forward(replica, 0.0, is_due=True)
    assert [(each.peer, each.number, each.code) for each in replica.writes.pending.take_answers()] == [
        (2, 70, Code.NO_LEADER)
    ]
    ((peer, frame),) = replica.sent
    assert peer == 3
    assert len(frame) == len(encode_forward(own.number, [own], 0.0)), "this write and no other"


async def test_a_read_round_that_was_not_confirmed_answers_no_reader() -> None:
    """The leadership was lost before a majority confirmed the round: its readers wait for the next one."""
    replica = replica_of()
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    replica.reads.rounds.waiting.append(ReadWaiter(future, FAR))
    replica.reads.contexts[5] = (1, replica.reads.rounds.start(1, 0.0))
    replica.reads.contexts[6] = (2, 33)
    reads.finish_reads(replica, Ready(reads_failed=(ReadFailed(5), ReadFailed(6))))
    assert not future.done()
    assert [reader.future for reader in replica.reads.rounds.waiting] == [future]
    ((peer, frame),) = replica.sent
    assert (peer, frame) == (2, encode_read_reply(33, 0))


async def test_a_read_waits_until_its_index_is_applied() -> None:
    """The round says 9, this node has applied 7: the reader waits for 9."""
    replica = replica_of()
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    replica.reads.rounds.waiting.append(ReadWaiter(future, FAR))
    reads._release_readers(replica, replica.reads.rounds.start(1, 0.0), 9)
    assert not future.done()
    replica.applier.waiters.applied(8)
    assert not future.done()
    replica.applier.waiters.applied(9)
    assert future.result() == 9


async def test_reads_and_writes_are_refused_while_states_differ() -> None:
    """No majority of the replicas has one state: linearizable reads and writes are refused alike."""
    replica = replica_of()
    replica.watch.points.differ = 5
    with pytest.raises(ApiError) as refused:
        reads.check(replica)
    assert refused.value.code is Code.STATES_DIFFER
    with pytest.raises(ApiError) as refused:
        writes.check(replica, append_block(b"v"))
    assert refused.value.code is Code.STATES_DIFFER


async def test_waiting_requests_are_answered_at_the_end() -> None:
    """Writes, reads and waits for an index each get the code with which the node ends."""
    replica = replica_of()
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    replica.applier.waiters.add(9, ReadWaiter(future, FAR))
    reader: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    replica.reads.rounds.waiting.append(ReadWaiter(reader, FAR))
    own = write()
    replica.writes.pending.submit(own)
    shutdown._fail_all(replica, Code.FENCED, "the disk failed")
    assert isinstance(own.future, asyncio.Future)
    for each in (future, reader, own.future):
        error = each.exception()
        assert isinstance(error, ApiError)
        assert error.code is Code.FENCED


async def test_writes_sent_over_a_link_that_closed_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The link to the leader closes before its answer: the write may or may not be in the log."""
    told: list[int] = []
    monkeypatch.setattr(disk_exchange, "lost", lambda replica, peer: told.append(peer))
    replica = replica_of(peer_log=SimpleNamespace(lost=told.append))
    own = write()
    replica.writes.pending.forwarding([own], 3)
    link_events.bulk_link_closed(replica, 3)
    assert isinstance(own.future, asyncio.Future)
    error = own.future.exception()
    assert isinstance(error, ApiError)
    assert error.code is Code.LEADER_LOST
    assert told == [3, 3]


async def test_the_newest_disk_report_is_due_again_once_a_peer_believes_the_link() -> None:
    """The peer dropped the reports before, and an unchanged report is not sent twice on a link."""
    reports, report = Reports(), DiskReport(sync_us=256)
    for peer in (2, 3):
        reports.sent(peer, report, 1.0)
    link_events.bulk_link_believed(replica_of(disks=SimpleNamespace(reports=reports)), 3)
    assert [reports.is_due(peer, report, 9.0) for peer in (2, 3)] == [False, True]


async def test_the_core_learns_of_every_link_that_opens() -> None:
    """By a heartbeat at once, a leader keeps followers that had lost their link from an election."""
    told: list[tuple[int, bool]] = []

    def link_dialled(peer: int, now: object, *, is_bulk: bool = False) -> None:
        told.append((peer, is_bulk))

    replica = replica_of()
    replica.core.link_dialled = link_dialled
    link_events.link_dialled(replica, 2, is_bulk=False)
    link_events.link_dialled(replica, 3, is_bulk=True)
    assert told == [(2, False), (3, True)]


@pytest.mark.parametrize(("snapshot", "is_leader", "takes_to"), [(7, False, 8), (6, False, 0), (7, True, 0)])
async def test_a_full_follower_takes_one_entry_for_its_second_snapshot(
    snapshot: int, is_leader: bool, takes_to: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk is full, something was trimmed, and its newest snapshot is at 7, where its state is: only with entry 8
    can it save a later one. With a snapshot of 6 it saves one of 7 at once; a leader makes an entry itself."""
    done: list[str] = []

    def saved(replica: object) -> bool:
        done.append("saved")
        return True

    monkeypatch.setattr(snapshots, "is_under_way", lambda replica: False)
    monkeypatch.setattr(snapshots, "save", saved)
    monkeypatch.setattr(clock_entries, "propose", lambda replica, now: done.append("proposed"))
    room = SimpleNamespace(
        look_at=0.0, let_go=(5, 1), trim_index=7, takes_to=0, save_at=0.0, save_pause_s=0.0, saved_over=0
    )
    replica = replica_of(
        is_leader=is_leader,
        machine=SimpleNamespace(compacted_revision=1, oldest=5),
        disk_space=room,
        disk=SimpleNamespace(
            reserve=SimpleNamespace(is_used=True), keep_reserve=lambda *_, **__: None, has_trimmed=lambda oldest: True
        ),
        syncer=SimpleNamespace(has_space=False, is_waiting=True, look_for_disk_space=lambda: None),
        snapshots=SimpleNamespace(index=snapshot),
    )
    disk_space.look_if_due(replica, 1e6)
    assert room.takes_to == takes_to
    assert done == (["saved"] if snapshot < 7 else ["proposed"] if is_leader else [])


@pytest.mark.parametrize(("state", "why"), [("is_fenced", "it is fenced"), ("is_stopping", "it is being stopped")])
async def test_a_node_that_is_fenced_or_stops_gives_nothing(state: str, why: str) -> None:
    """A state that differs from the majority's made other effects of the same entries; every kind of question."""
    replica = replica_of(
        disk=SimpleNamespace(oldest=2), reader=None, machine=SimpleNamespace(oldest=1), is_damage_known=False
    )
    assert (await serving._answer(replica, Question(5, QuestionKind.STATE))).reason == ""
    setattr(replica.life, state, True)
    for what in QuestionKind:
        assert (await serving._answer(replica, Question(5, what, 3, 4, 100))).reason == why


async def test_a_report_of_another_state_is_compared_at_once() -> None:
    """Nodes 2 and 3 report one value for point 100, this node has another: with the second report it ends."""
    members = tuple(Member(node, f"{node}" * 32, f"127.0.0.1:{node}", f"http://127.0.0.1:{node}") for node in (1, 2, 3))
    failed: list[BaseException] = []
    said: list[str] = []
    logger = SimpleNamespace(error=lambda event, **_: said.append(event))
    replica = replica_of(driver=SimpleNamespace(fail=failed.append), logger=logger)
    replica.core.state.configuration = Configuration(members, (1, 2, 3))
    replica.watch.points.applied(100, b"a" * POINT_BYTES)
    for peer in (2, 3):
        report = encode_points(f"{peer}" * 32, is_asking=False, reports=((100, b"b" * POINT_BYTES),))
        (frame,) = FrameDecoder().feed(report)
        digest_exchange.take(replica, peer, frame)
        assert [type(error) for error in failed] == ([] if peer == 2 else [Diverged])
        assert said == ["states_differ"], "the first report leaves no majority with one state"
