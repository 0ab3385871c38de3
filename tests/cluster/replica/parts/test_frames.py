"""Frames of peers on the bulk link: of which disk they are taken, whose answer counts, and that none ends a node."""

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.protocol.disk_reports import DiskReport, Reports, encode_report
from raftlog.cluster.protocol.forward_frames import (
    NUMBER_MAX,
    encode_answers,
    encode_forward,
    encode_points,
    encode_read,
    encode_read_reply,
)
from raftlog.cluster.protocol.log_frames import Question, QuestionKind, encode_question
from raftlog.cluster.protocol.request import PeerReply
from raftlog.cluster.protocol.waiters import ReadWaiter
from raftlog.cluster.replica.parts import disk_exchange, link_events, serving
from raftlog.cluster.replica.state import PeersServed
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.codec.checks import INDEX_MAX, Corrupt, UnknownVersion
from raftlog.raft.codec.frame import FRAME_DISK, FRAME_FORWARD, Frame, FrameDecoder, encode_frame
from raftlog.statemachine.digest import POINT_BYTES
from tests.cluster.nodes import append_block
from tests.cluster.replica.parts.test_requests import FAR, replica_of, write
from tests.raft.consensus.test_hearing import GONE, a_core


def framed(data: bytes) -> Frame:
    """The one frame of these bytes."""
    (frame,) = FrameDecoder().feed(data)
    return frame


def leading(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A replica whose core leads nodes 1 to 3, and has removed node 4; `served` are the questions that it answers."""
    core = a_core("leader")
    lines: list[str] = []
    logger = SimpleNamespace(warning=lambda event, **values: lines.append(f"{event} {values['sender']}"))
    logger.bind = lambda **_: logger
    replica = replica_of(
        is_leader=True,
        identity=SimpleNamespace(node=1, incarnation=f"{1:032x}"),
        served=PeersServed(),
        logger=logger,
        lines=lines,
        questions=[],
        disks=SimpleNamespace(reports=Reports(), takes_writes=True, knows_time=True),
        driver=SimpleNamespace(turn=lambda: None),
    )
    replica.core = core
    monkeypatch.setattr(serving, "take", lambda replica, peer, question: replica.questions.append(question))
    return replica


def requests() -> list[Frame]:
    """Each frame by which a peer asks for something or reports."""
    return [
        framed(encode_forward(7, [write(peer=4)], 0.0)),
        framed(encode_read(7)),
        framed(encode_question(Question(1, QuestionKind.SLICE, 1, 9, 100))),
        framed(encode_report(DiskReport())),
        framed(encode_points("4" * 32, is_asking=True, reports=((5, b"x" * POINT_BYTES),))),
    ]


@pytest.mark.parametrize("sender", [*GONE, (9, "9" * 32)])
async def test_a_leader_takes_no_request_or_report_of_a_disk_that_is_no_member(
    sender: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removed node, whose key would forward a request with the admission of an admin, or read the log. Each is
    counted and named in the log.

    Guard: `take_frames` of cluster/replica/parts/link_events.py.
    """
    replica, frames = leading(monkeypatch), requests()
    link_events.take_frames(replica, *sender, frames)
    assert (len(replica.writes.pending.queue), replica.reads.asked, replica.questions) == (0, [], [])
    assert replica.watch.points.reports() == ()
    assert replica.disks.reports.of([4, 9]) == {}
    assert replica.metrics.registry.get_sample_value("raftlog_messages_refused_total", {"peer": "others"}) == 5
    assert replica.lines == [f"message_ignored {sender[0]}"] * 4, "a read index and a question have one kind"
    link_events.take_frames(replica, 2, f"{2:032x}", frames[:3])
    assert (len(replica.writes.pending.queue), replica.reads.asked, len(replica.questions)) == (1, [(2, 7)], 1)


async def test_an_answer_counts_from_the_peer_that_was_asked_alone() -> None:
    """Another node's refusal would report an applied write as not applied, and its read index an old value as the
    newest. The former leader's answers count, even if it was removed meanwhile.

    Guards: `Pending.is_asked`, and `asked` in `_take_frame` of cluster/replica/parts/link_events.py.
    """
    replica = replica_of(core=SimpleNamespace(state=a_core("follower").state, refusal=lambda *_: "it was removed"))
    replica.driver.turn = lambda: None
    replica.reads.batching = SimpleNamespace(answered=lambda *_: None)
    own: Any = write()
    read = asyncio.get_running_loop().create_future()
    number = replica.writes.pending.forwarding([own], 3)
    replica.reads.rounds.waiting.append(ReadWaiter(read, FAR))
    asked = replica.reads.rounds.start(3, 0.0)
    frames = [
        framed(encode_answers([PeerReply(3, number, 0, Code.BUSY)], 4)),
        framed(encode_read_reply(asked, 5)),
    ]
    link_events.take_frames(replica, 2, "2", frames)
    assert not own.future.done()
    assert not read.done()
    link_events.take_frames(replica, 3, "3", frames)
    assert isinstance(own.future.exception(), ApiError)
    assert read.result() == 5


@pytest.mark.parametrize(
    "block",
    [
        encode_block([BlockRecord(200, b"k", b"v")]),
        encode_block([BlockRecord(0)]),
        append_block(b"v")[:-1] + b"",
        encode_block([BlockRecord(5, None, b"\x92\x09\x90")]),
    ],
)
async def test_a_forwarded_block_that_no_node_can_apply_closes_its_connection(block: bytes) -> None:
    """Committed, it would end every node: nothing that is not known is ever passed over.

    Guard: `check_blocks` of cluster/records/entries.py.
    """
    replica = replica_of(core=SimpleNamespace(state=a_core("leader").state, refusal=lambda *_: ""))
    replica.driver.turn = lambda: None
    with pytest.raises((Corrupt, UnknownVersion)):
        link_events.take_frames(replica, 2, "2", [framed(encode_frame(FRAME_FORWARD, [1, 7, [1_000]], block))])


async def test_no_frame_ends_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind with a header and a payload of any form and extreme numbers, of a member: it is taken, or its
    connection is closed. What the node then sends has a form, too."""
    replica, random = leading(monkeypatch), Random(4)
    replica.peer_log = SimpleNamespace(take=lambda peer, had: None)
    monkeypatch.setattr(disk_exchange, "_lead", lambda replica, now: None)

    def anything(depth: int = 0) -> object:
        number = random.choice([0, 1, 7, NUMBER_MAX, INDEX_MAX, 2**64 - 1, -1, -(2**63)])
        made: list[object] = [number, number, True, None, "log", "slice", b"", b"x" * POINT_BYTES, "2" * 32]
        if depth < 2:
            made += [[anything(depth + 1) for _ in range(random.randrange(4))]] * 3
        return random.choice(made)

    taken = 0
    for _ in range(6_000):
        header = [anything() for _ in range(random.randrange(8))]
        left = [random.choice([0, 1, INDEX_MAX, 2**64 - 1]) for _ in range(random.randrange(3))]
        header = random.choice([header, [1, anything(), left], [anything()], [anything(), anything()]])
        payload = random.choice([b"", append_block(b"v"), append_block(b"v") * 2, random.randbytes(60)])
        kind = random.randrange(FRAME_FORWARD, FRAME_DISK + 1)
        try:
            link_events.take_frames(replica, 2, f"{2:032x}", [framed(encode_frame(kind, header, payload))])
            taken += 1
        except (Corrupt, UnknownVersion):
            continue
        while replica.writes.pending.queue:
            request = replica.writes.pending.queue.popleft()
            encode_answers([PeerReply(request.peer, request.number, 5), PeerReply(2, request.number, 0, Code.BUSY)], 4)
        for _, number in replica.reads.asked:
            encode_read_reply(number, 5)
        replica.reads.asked.clear()
    assert taken > 30
