"""Several chunks of a snapshot under way: how many, in which order, and what a lost one or a new link does."""

from dataclasses import replace

from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.progress import FETCH_CHUNKS_MAX, Upload
from raftlog.raft.messages import InstallSnapshot, InstallSnapshotReply
from raftlog.raft.options import Options
from tests.raft.consensus.snapshots.test_snapshots_receiver import feed, told
from tests.raft.consensus.snapshots.test_snapshots_sender import drain_fetches, sending
from tests.raft.lab import at, chunk, drain, make_core, progress

TOTAL = 60


def under_way(core: RaftCore) -> Upload:
    """The transfer to node 2."""
    found = progress(core, 2).sending
    assert found is not None
    return found


def send_all(core: RaftCore, now_ms: int) -> list[int]:
    """Answer each fetch with two bytes until none is wanted; the offsets of the chunks that left."""
    offsets: list[int] = []
    while (ready := core.ready()) is not None:
        offsets += [each.offset for each in ready.messages if isinstance(each, InstallSnapshot)]
        for fetch in ready.snapshot_fetches:
            core.snapshot_chunk(fetch, TOTAL, b"xy", at(now_ms))
    return offsets


def answer(core: RaftCore, offset: int, now_ms: int, *, accepted: bool = True) -> None:
    """Node 2 has everything before `offset`."""
    core.step(
        InstallSnapshotReply(
            sender=2, to=1, term=core.state.term, snapshot_index=7, snapshot_term=1, offset=offset, accepted=accepted
        ),
        at(now_ms),
    )


def begun(**options: int) -> RaftCore:
    """A leader that sends 60 bytes two by two; the first four chunks left at 360 ms, one was answered at 370."""
    options = {"snapshot_window_bytes": 16 << 20, **options}
    core = sending(TOTAL, b"abcdefgh", **options)
    answer(core, 2, 370)
    assert send_all(core, 370) == [8, 10]
    return core


def test_the_window_grows_with_each_answer_to_its_limit() -> None:
    """One chunk more for each that was answered in time, and never more bytes than the limit."""
    core = begun(snapshot_window_bytes=15)
    answer(core, 4, 380)
    assert send_all(core, 380) == [12, 14]
    answer(core, 6, 390)
    assert send_all(core, 390) == [16, 18]
    answer(core, 8, 395)
    assert send_all(core, 395) == [20]
    assert (under_way(core).sent - under_way(core).offset, under_way(core).window_bytes) == (14, 15)


def test_the_window_begins_with_no_more_than_its_limit() -> None:
    """Four chunks, or as many as fit; one always."""
    for limit, first in ((1, b"ab"), (5, b"abcd"), (7, b"abcdef"), (8, b"abcdefgh"), (9, b"abcdefgh")):
        sent = under_way(sending(TOTAL, first, snapshot_window_bytes=limit))
        assert (sent.sent, sent.window_bytes) == (len(first), min(8, limit))


def test_late_answers_make_the_window_smaller() -> None:
    """They say that chunks wait on the line or for the disk: half of it, once for all that left before; down to one."""
    core = begun(snapshot_queue_ms=50)
    sending_now = under_way(core)
    grown, ends = sending_now.window_bytes, [end for end, _ in sending_now.inflight]
    assert (grown, ends) == (10, [4, 6, 8, 10, 12])
    for end in ends:
        answer(core, end, 370 + 61)  # the quickest took 10 ms
    assert sending_now.window_bytes == grown // 2
    assert send_all(core, 432) == [12, 14]
    for end, window, now_ms in ((14, 2, 503), (16, 2, 503)):
        answer(core, end, now_ms)
        assert sending_now.window_bytes == window
    assert send_all(core, 503) == [16]
    answer(core, 18, 504)
    assert send_all(core, 504) == [18, 20]


def test_several_chunks_are_asked_from_disk_together() -> None:
    """As many as the window takes, and FETCH_CHUNKS_MAX at most; each leaves as a message of its own."""
    core = begun()
    answer(core, 12, 390)
    ready = core.ready()
    assert ready is not None
    (fetch,) = ready.snapshot_fetches
    assert fetch.bytes_max == 2 * FETCH_CHUNKS_MAX
    core.snapshot_chunk(fetch, TOTAL, b"abcdefg", at(391))
    left = [(each.offset, each.data) for each in drain(core, 391).messages if isinstance(each, InstallSnapshot)]
    assert left == [(12, b"ab"), (14, b"cd"), (16, b"ef"), (18, b"g")]


def test_a_new_link_continues_behind_the_answered_chunks() -> None:
    """Chunks under way on the old link are lost. Only the link that carries chunks counts."""
    core = begun()
    for offset in (4, 6, 8):
        answer(core, offset, 380)
        send_all(core, 380)
    core.link_dialled(2, at(385))
    core.link_dialled(2, at(385), is_bulk=True)
    assert send_all(core, 385) == [], "node 2 itself is not connected: a proxy may have taken the dial"
    core.link_opened(2, f"{2:032x}", 1, at(386))
    core.link_dialled(2, at(390), is_bulk=True)
    core.link_dialled(3, at(390), is_bulk=True)
    assert send_all(core, 390) == [8]
    answer(core, 10, 391)
    assert send_all(core, 391) == [10]


def test_an_answer_beyond_the_sent_chunks_is_believed() -> None:
    """After the leader went back, an answer to an earlier chunk comes: the follower has it, so it is not sent again."""
    core = begun()
    for offset in (4, 6, 8):
        answer(core, offset, 380)
        send_all(core, 380)
    core.link_opened(2, f"{2:032x}", 1, at(390))
    core.link_dialled(2, at(390), is_bulk=True)
    assert drain_fetches(core) == [8]
    answer(core, 14, 395)
    assert send_all(core, 395) == [14]


def test_a_follower_takes_chunks_in_order_while_it_writes() -> None:
    """Each is asked to be written at once, and answered in turn; one that waits already is not asked for again."""
    core = make_core(1, 3)
    writes = [
        ready.snapshot_writes[0]
        for offset in (0, 2)
        for ready in feed(core, chunk(b"xx", offset=offset, total=8), write=False)
    ]
    assert [write.offset for write in writes] == [0, 2]
    assert feed(core, chunk(b"xx", offset=2, total=8), write=False) == []
    assert told(feed(core, chunk(b"xx", offset=6, total=8), write=False)) == [(0, True)]  # one between is missing
    core.snapshot_written(writes[1], at(5))
    assert drain(core, 5).messages == []  # out of turn: the driver writes in order
    for write, offset in zip(writes, (2, 4), strict=True):
        core.snapshot_written(write, at(10))
        (reply,) = [each for each in drain(core, 10).messages if isinstance(each, InstallSnapshotReply)]
        assert (reply.offset, reply.accepted) == (offset, True)


def test_a_follower_keeps_no_more_than_the_window() -> None:
    """A leader that sends more is not answered until the disk is done with some of it; one chunk is always taken."""
    core = make_core(1, 3, options=Options(snapshot_window_bytes=5))
    asked = [
        len(ready.snapshot_writes)
        for offset in (0, 2, 4)
        for ready in feed(core, chunk(b"xx", offset=offset, total=16), write=False)
    ]
    assert asked == [1, 1]
    core = make_core(1, 3, options=Options(snapshot_window_bytes=1))
    assert told(feed(core, chunk(b"xx", total=16))) == [(2, True)]


def test_a_failed_snapshot_begins_again_without_its_waiting_chunks() -> None:
    """The writes that wait belong to nothing any more."""
    core = make_core(1, 3)
    (first,) = feed(core, chunk(b"xx", total=8), write=False)
    feed(core, chunk(b"xx", offset=2, total=8), write=False)
    core.snapshot_failed(at(1))
    (reply,) = [each for each in drain(core, 1).messages if isinstance(each, InstallSnapshotReply)]
    assert (reply.offset, reply.accepted) == (0, False)
    core.snapshot_written(first.snapshot_writes[0], at(2))
    assert drain(core, 2).messages == []
    assert told(feed(core, chunk(b"xx", total=8))) == [(2, True)]
    assert told(feed(core, replace(chunk(b"xx", offset=2, total=8), term=1))) == [(4, True)]
