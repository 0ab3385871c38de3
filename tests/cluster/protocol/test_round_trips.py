"""What nodes send each other, and what a disk keeps beside the entries, decodes to the encoded value, field by field.

Values are drawn by the types of the fields, so a field that is added is drawn and compared too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings, strategies as st

from raftlog.cluster.api.errors import Code
from raftlog.cluster.peers.hello import Hello, Purpose, Word, decode_hello, decode_word, encode_hello, encode_word
from raftlog.cluster.protocol.forward_frames import (
    decode_answers,
    decode_points,
    decode_read_reply,
    encode_answers,
    encode_points,
    encode_read_reply,
)
from raftlog.cluster.protocol.log_frames import (
    PeerLogReply,
    Question,
    QuestionKind,
    decode_log_reply,
    decode_question,
    encode_log_reply,
    encode_question,
)
from raftlog.cluster.protocol.request import PeerReply
from raftlog.raft.codec.checks import INDEX_MAX
from raftlog.raft.codec.configuration import decode_configuration, encode_configuration
from raftlog.raft.codec.entry import seal_entry
from raftlog.raft.codec.frame import Frame, FrameDecoder
from raftlog.raft.codec.index_rows import IDX_ROW
from raftlog.raft.codec.mark import decode_mark, encode_mark
from raftlog.raft.codec.message import decode_message, encode_message
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.hello import Start
from raftlog.raft.messages import Message
from raftlog.raft.types import Entry, EntryKind, HardState, Mark
from raftlog.raft.wal.divergence import DivergenceNote, decode_note, encode_note
from raftlog.raft.wal.formats import (
    LogIdentity,
    SegmentHeader,
    Slot,
    SnapshotMeta,
    decode_segment_header,
    decode_slot,
    decode_snapshot_meta,
    encode_segment_header,
    encode_slot,
    encode_snapshot_meta,
)
from raftlog.raft.wal.reading import RawSlice
from raftlog.statemachine.access.admission import EXTERNAL_PREFIX, Admission, decode_admission, encode_admission
from raftlog.statemachine.access.commands import AccessAction, AccessCommand, Condition, decode_access, encode_access
from raftlog.statemachine.access.grants import POSSIBLE, RANGED, Grant, parse_grant
from raftlog.statemachine.consumers import ConsumerAction, ConsumerCommand, decode_consumer, encode_consumer
from raftlog.statemachine.digest import POINT_BYTES
from tests.statemachine.comparing import plain

WHOLE = st.sampled_from([0, 1, 2, 1 << 32, INDEX_MAX]) | st.integers(0, INDEX_MAX)
CRC = st.sampled_from([0, 1, (1 << 32) - 1])
TEXT = st.text(max_size=4)
NAME = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=4)
BYTES = st.binary(max_size=4)
LOG = LogIdentity(b"l" * 16, 0)
MARK = st.builds(Mark, WHOLE, WHOLE, CRC, WHOLE, WHOLE)
EARLY = st.integers(0, 100)
NODES = st.lists(st.integers(1, 9), max_size=4, unique=True).map(sorted).map(tuple)


@st.composite
def configurations(draw: st.DrawFn) -> Configuration:
    """Any members with any roles, also none."""
    voters, outgoing = draw(NODES), draw(NODES)
    learners = tuple(node for node in draw(NODES) if node not in voters)
    named = sorted({*voters, *outgoing, *learners})
    members = tuple(Member(node, draw(TEXT), draw(TEXT), draw(TEXT)) for node in named)
    parameters = tuple(draw(st.lists(st.tuples(TEXT, WHOLE), max_size=3)))
    return Configuration(members, voters, outgoing, learners, draw(WHOLE), parameters)


@st.composite
def entry_rows(draw: st.DrawFn) -> tuple[Any, ...]:
    """Up to three entries of any kind, one behind the other."""
    previous, entries = Mark(draw(EARLY), draw(EARLY)), list[Entry]()
    for _ in range(draw(st.integers(0, 3))):
        kind, count = draw(st.sampled_from(EntryKind)), draw(st.integers(1, 5))
        term, data = previous.term + draw(st.integers(0, 2)), draw(BYTES)
        entries.append(seal_entry(previous, term=term, kind=kind, count=count, time_ms=5, clock_ms=6, data=data))
        previous = entries[-1].mark
    return tuple(entries)


@st.composite
def hards(draw: st.DrawFn) -> Slot:
    """A slot; one of a log under repair has floor and cut."""
    floor = draw(WHOLE) >> 1
    cut = draw(WHOLE)
    return Slot(draw(WHOLE), HardState(draw(WHOLE), draw(WHOLE), draw(WHOLE), floor), cut, bool(floor and cut))


@st.composite
def hads(draw: st.DrawFn) -> PeerLogReply:
    """An answer with or without a slice."""
    first, count = draw(EARLY), draw(st.integers(0, 3))
    raw = RawSlice(b"r" * IDX_ROW.size * count, draw(BYTES), draw(BYTES), draw(WHOLE), first, first + count)
    marks = draw(st.tuples(WHOLE, WHOLE, WHOLE))
    return PeerLogReply(draw(WHOLE), draw(TEXT), *marks, draw(WHOLE), draw(MARK), raw if count else None)


@st.composite
def grants(draw: st.DrawFn) -> Grant:
    """Any grant that there can be."""
    resource = draw(st.sampled_from(sorted(POSSIBLE)))
    start, end = sorted((draw(BYTES), draw(BYTES))) if resource in RANGED else (b"", b"")
    return Grant(draw(st.sampled_from(POSSIBLE[resource])), resource, start, end if end > start else b"")


STARTS = st.builds(
    Start,
    run=st.integers(1, INDEX_MAX),
    last_index=WHOLE,
    last_term=EARLY,
    term=st.integers(100, INDEX_MAX),
    floor=WHOLE,
)
CHALLENGES = st.sampled_from([0, 1, (1 << 64) - 1])
HELLOS = st.builds(
    Hello,
    log=TEXT,
    sender=WHOLE,
    to=WHOLE,
    incarnation=TEXT,
    boot=WHOLE,
    purpose=st.sampled_from(Purpose),
    shard=WHOLE,
    version_min=WHOLE,
    version_max=st.integers(1, 9),
    knows=WHOLE,
    start=STARTS,
    challenge=CHALLENGES,
    answer=CHALLENGES,
    at=st.sampled_from(["", "h:1", "[::1]:7001"]),
    program=st.sampled_from(["", "0.1.0", "1!2.0rc1+local"]),
    disk_bytes=st.sampled_from([0, 1, 10**18 - 1]),
)
REPLIES = st.lists(st.builds(PeerReply, st.just(2), WHOLE, WHOLE, st.none() | st.sampled_from(Code)), max_size=4)


def _messages() -> st.SearchStrategy[Any]:
    """Every kind of message, by the types of its fields."""
    drawn: dict[Any, st.SearchStrategy[Any]] = {int: WHOLE, bool: st.booleans(), bytes: BYTES}
    drawn |= {tuple[Entry, ...]: entry_rows(), tuple: entry_rows()}  # a compiled class keeps `tuple` of it
    return st.one_of(
        [
            st.builds(kind, **{name: drawn[hint] for name, hint in get_type_hints(kind).items()})
            for kind in get_args(Message)
        ]
    )


def framed(encode: Callable[[Any], bytes], decode: Callable[[Frame], Any]) -> Callable[[Any], Any]:
    """Through a frame."""

    def through(value: Any) -> Any:
        (frame,) = FrameDecoder().feed(encode(value))
        return decode(frame)

    return through


def answers(replies: list[PeerReply]) -> list[PeerReply]:
    """Accepted ones first, with index, then refused ones with their code; those have no index."""
    term, placed, refused = framed(lambda each: encode_answers(each, 7), decode_answers)(replies)
    assert term == 7
    return [PeerReply(2, *pair) for pair in placed] + [PeerReply(2, number, 0, code) for number, code in refused]


def in_order(replies: list[PeerReply]) -> list[PeerReply]:
    """What `answers` gives back."""
    accepted = [each for each in replies if each.code is None]
    return accepted + [each._replace(first=0) for each in replies if each.code is not None]


Pair = tuple[st.SearchStrategy[Any], Callable[[Any], Any]]
POINTS = st.lists(st.tuples(st.integers(1, INDEX_MAX), st.just(b"p" * POINT_BYTES)), max_size=3).map(tuple)
PAIRS: dict[str, Pair] = {
    "message": (_messages(), framed(encode_message, decode_message)),
    "configuration": (configurations(), lambda value: decode_configuration(encode_configuration(value))),
    "hello": (HELLOS, framed(encode_hello, decode_hello)),
    "word": (st.tuples(st.sampled_from(Word), WHOLE), framed(lambda pair: encode_word(*pair), decode_word)),
    "question": (
        st.builds(Question, WHOLE, st.sampled_from(QuestionKind), WHOLE, WHOLE, WHOLE),
        framed(encode_question, decode_question),
    ),
    "had": (hads(), framed(encode_log_reply, decode_log_reply)),
    "read reply": (
        st.tuples(WHOLE, WHOLE),
        framed(lambda pair: encode_read_reply(*pair), decode_read_reply),
    ),
    "points": (
        st.tuples(TEXT, st.booleans(), POINTS),
        framed(lambda all_: encode_points(all_[0], is_asking=all_[1], reports=all_[2]), decode_points),
    ),
    "mark": (st.builds(Mark, WHOLE, WHOLE, CRC), lambda value: decode_mark(encode_mark(value, 3), 0)),
    "hard state": (hards(), lambda value: decode_slot(LOG, encode_slot(LOG, value))),
    "segment header": (
        st.builds(SegmentHeader, st.builds(Mark, EARLY, WHOLE, CRC, WHOLE, WHOLE), st.integers(100, 1 << 31)),
        lambda value: decode_segment_header(LOG, encode_segment_header(LOG, value)),
    ),
    "snapshot meta": (
        st.builds(SnapshotMeta, MARK, BYTES, WHOLE, WHOLE, WHOLE, CRC),
        lambda value: decode_snapshot_meta(LOG, encode_snapshot_meta(LOG, value)),
    ),
    "divergence": (
        st.builds(DivergenceNote, WHOLE, WHOLE),
        lambda value: decode_note(LOG, encode_note(LOG, value)),
    ),
    "admission": (
        st.builds(Admission, NAME.map("a".__add__), WHOLE, st.just(()))
        | st.builds(Admission, NAME.map(EXTERNAL_PREFIX.__add__), WHOLE, st.lists(NAME, max_size=2).map(tuple)),
        lambda value: decode_admission(encode_admission(value)),
    ),
    "access command": (
        st.builds(
            AccessCommand,
            st.sampled_from(AccessAction).map(int),
            TEXT,
            st.lists(TEXT, max_size=2).map(tuple),
            st.lists(grants(), max_size=2).map(tuple),
            st.booleans(),
            st.sampled_from(Condition).map(int),
            TEXT,
            BYTES,
            WHOLE,
            TEXT,
        ),
        lambda value: decode_access(encode_access(value)),
    ),
    "grant as text": (grants(), lambda value: parse_grant(str(value))),
    "consumer command": (
        st.builds(ConsumerCommand, st.sampled_from(ConsumerAction).map(int), WHOLE, WHOLE, BYTES),
        lambda value: decode_consumer(encode_consumer(value)),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
@settings(max_examples=100)
@given(st.data())
def test_a_value_decodes_to_itself(name: str, data: st.DataObject) -> None:
    """Every field has its value and its type again, also where numbers are 0 and texts and rows are empty."""
    values, through = PAIRS[name]
    value = data.draw(values)
    assert plain(through(value)) == plain(value)


@given(REPLIES)
def test_answers_to_forwarded_requests_decode_to_themselves(replies: list[PeerReply]) -> None:
    """Each number with its index or its code; accepted and refused ones keep their order."""
    assert answers(replies) == in_order(replies)
