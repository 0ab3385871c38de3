"""Tests the nodes' questions about their logs: frames arrive as they were sent, and all others are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.cluster.protocol.forward_frames import encode_read, encode_read_reply
from raftlog.cluster.protocol.log_frames import (
    PeerLogReply,
    Question,
    QuestionKind,
    decode_log_reply,
    decode_question,
    encode_log_reply,
    encode_question,
    is_about_log,
)
from raftlog.raft.codec.checks import Corrupt
from raftlog.raft.codec.frame import FRAME_READ, FRAME_READ_REPLY, Frame, FrameDecoder
from raftlog.raft.codec.index_rows import IDX_ROW
from raftlog.raft.types import Mark
from raftlog.raft.wal.reading import RawSlice

SLICE = RawSlice(bytes(3 * IDX_ROW.size), b"entries", b"effects", 64, 5, 8)
HAD = PeerLogReply(7, "", 1, 5, 90, 5, Mark(4, 2, 0xABCD, 1_000, 30), SLICE)


def frame(data: bytes) -> Frame:
    """The one frame in these bytes."""
    (found,) = FrameDecoder().feed(data)
    return found


def test_read_index_frames_differ_from_log_frames() -> None:
    """Both use the same kinds of frames."""
    assert is_about_log(frame(encode_question(Question(3, QuestionKind.SLICE))))
    assert is_about_log(frame(encode_log_reply(HAD)))
    assert not is_about_log(frame(encode_read(3)))
    assert not is_about_log(frame(encode_read_reply(3, 9)))


@pytest.mark.parametrize(
    "header",
    [("log",), ("log", 1, "everything", 1, 1, 1), ("log", 1, "slice", -1, 1, 1), ("log", 1, "slice", True, 1, 1)],
)
def test_a_question_that_makes_no_sense_is_refused(header: tuple[Any, ...]) -> None:
    """Wrong form, unknown kind, numbers that are none."""
    with pytest.raises(Corrupt, match="question about the log"):
        decode_question(Frame(FRAME_READ, header, b""))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (1, -1),
        (2, 5),
        (3, (1, 2)),
        (3, (1, 2, "3")),
        (4, True),
        (5, (1, 2, 3, 4)),
        (6, (5, 8, 64, 1, 7)),
        (6, (8, 5, 64, 0, 7)),
        (6, (5, 8, 64, 48, 1_000)),
        (6, (5, 8, 64, 48, -1)),
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(place: int, value: Any) -> None:
    """Wrong form, numbers that are none, rows that are not as many as the records, more bytes than came."""
    good = frame(encode_log_reply(HAD))
    header = [*good.header]
    header[place] = value
    with pytest.raises(Corrupt, match="answer about the log"):
        decode_log_reply(Frame(FRAME_READ_REPLY, tuple(header), good.payload))
