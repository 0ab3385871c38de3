"""Snapshots whose frames are sealed rightly and say what cannot be: each check of the restorer by itself."""

from collections.abc import Iterable
from struct import Struct
from typing import Any

import google_crc32c
import msgpack
import pytest

from raftlog.statemachine import versions
from raftlog.statemachine.machine import StateMachine
from raftlog.statemachine.snapshot import (
    CHUNK_BYTES_MAX,
    CONSUMERS,
    CONTINUED,
    DIGESTS,
    END,
    FRAME_SIZE,
    HEAD,
    KEYS,
    SESSIONS,
    SNAPSHOT_MAGIC,
    SNAPSHOT_VERSION,
    CorruptSnapshot,
    UnknownSnapshot,
)
from raftlog.statemachine.versions import CLUSTER_VERSION
from tests.statemachine import mixture

_HEAD = Struct("<4sBBHI")
Frame = tuple[int, int, bytes]  # kind, flags, payload


def frames_of(machine: StateMachine) -> list[Frame]:
    """A snapshot taken apart."""
    whole = b"".join(machine.snapshot())
    frames: list[Frame] = []
    while whole:
        _, _, kind, flags, size = _HEAD.unpack_from(whole)
        frames.append((kind, flags, whole[FRAME_SIZE : FRAME_SIZE + size]))
        whole = whole[FRAME_SIZE + size :]
    return frames


def restore(frames: Iterable[Frame]) -> StateMachine:
    """Sealed again, so that only what they say can be wrong."""
    chunks = []
    for kind, flags, payload in frames:
        head = _HEAD.pack(SNAPSHOT_MAGIC, SNAPSHOT_VERSION, kind, flags, len(payload))
        crc = google_crc32c.extend(google_crc32c.value(head), payload)
        chunks.append(head + crc.to_bytes(4, "little") + payload)
    return StateMachine.restore(chunks)


def packed(*items: object) -> bytes:
    """Items as they follow each other in a frame."""
    return b"".join(msgpack.packb(item, use_bin_type=True) for item in items)


ORDER = (HEAD, KEYS, SESSIONS, DIGESTS, CONSUMERS, END)
FRAMES = frames_of(mixture.driven(60).machine)
HEAD_ROW: list[Any] = msgpack.unpackb(FRAMES[0][2], raw=False)
END_ROW: list[Any] = msgpack.unpackb(FRAMES[-1][2], raw=False)


def with_kind(kind: int, payload: bytes, flags: int = 0) -> list[Frame]:
    """The good frames, with one kind's replaced by a single one."""
    frames = [frame for frame in FRAMES if frame[0] != kind]
    place = len([frame for frame in frames if ORDER.index(frame[0]) < ORDER.index(kind)])
    return [*frames[:place], (kind, flags, payload), *frames[place:]]


def with_head(**changed: Any) -> list[Frame]:
    """The good frames under another head."""
    names = ("index", "term", "time_ms", "clock_ms", "revision", "compacted", "digest", "limits", "oldest", "version")
    row = [changed.get(name, value) for name, value in zip(names, HEAD_ROW, strict=True)]
    return with_kind(HEAD, packed(row))


def test_the_good_frames_are_taken() -> None:
    """Taken apart and sealed again, nothing is wrong with them: so the tests below fail for their own reason."""
    assert b"".join(restore(FRAMES).snapshot()) == b"".join(mixture.driven(60).machine.snapshot())


ANSWER = b"\0" * 8 + b"\x01\x01" + b"\0" * 38

WRONG: dict[str, tuple[list[Frame], str]] = {
    "an item is half": (with_kind(KEYS, packed([b"a", []])[:-1] + b"\x92"), "half an item|incomplete"),
    "a frame ends within an item": ([FRAMES[0], (KEYS, 0, b"\x92\xc4")], "half an item|incomplete"),
    "an item goes on in another kind": ([FRAMES[0], (KEYS, CONTINUED, b"\x92"), (SESSIONS, 0, b"\x90")], "go on"),
    "two heads": ([(HEAD, 0, packed(HEAD_ROW, HEAD_ROW))], "a second head"),
    "kinds out of order": ([FRAMES[0], (DIGESTS, 0, packed([0] * 5)), (KEYS, 0, b"")], "comes after one of kind"),
    "keys before the head": (FRAMES[1:], "comes after one of kind"),
    "a head without limits": (with_kind(HEAD, packed(HEAD_ROW[:7])), "unpack"),
    "a negative index": (with_head(index=-1), "whole number"),
    "a term of text": (with_head(term="x"), "whole number"),
    "a digest too short": (with_head(digest=[1]), "its head says"),
    "another digest": (with_head(digest=[1, 2, 3, 4]), "its head says"),
    "compacted after its revision": (with_head(revision=2, compacted=9), "with the oldest at"),
    "revisions are missing": (with_head(revision=HEAD_ROW[4] + 1), "keys of the snapshot"),
    "a key of no records": (with_kind(KEYS, packed([b"a", []])), "comes after"),
    "a key cut short": (with_kind(KEYS, packed([b"a", [b"x"]])), "cut short"),
    "an answer too short": (with_kind(SESSIONS, packed([3, 1000, 2000, 0, [1, b"xx"], ""])), "keeps"),
    "an answer of text": (with_kind(SESSIONS, packed([3, 1000, 2000, 0, [1, "xx"], ""])), "keeps"),
    "sequences without answers": (with_kind(SESSIONS, packed([3, 1000, 2000, 0, [1], ""])), "argument"),
    "a settled sequence": (with_kind(SESSIONS, packed([3, 1000, 2000, 5, [1, ANSWER], ""])), "settled"),
    "an owner that is a number": (with_kind(SESSIONS, packed([3, 9, 9, 0, [], 5])), "session 3 has owner 5"),
    "sessions out of order": (with_kind(SESSIONS, packed([3, 9, 9, 0, [], ""], [3, 9, 9, 0, [], ""])), "out of order"),
    "a digest of five": (with_kind(DIGESTS, packed([1, 2])), "unpack"),
    "a digest below zero": (with_kind(DIGESTS, packed([1, 2, 3, -4, 5])), "whole number"),
    "a consumer of four": (with_kind(CONSUMERS, packed([b"g", 1, 2, b"", 3, ""])), "missing"),
    "a consumer without a number": (with_kind(CONSUMERS, packed([b"g", 1, -2, b"", 3, 4, ""])), "a consumer of"),
    "an owner of text": (with_kind(CONSUMERS, packed([b"g", 1, 2, "x", 3, 4, ""])), "a consumer of"),
    "a name of text": (with_kind(CONSUMERS, packed(["g", 1, 2, b"", 3, 4, ""])), "a consumer named"),
    "a maker of bytes": (with_kind(CONSUMERS, packed([b"g", 1, 2, b"", 3, 4, b"x"])), "has maker"),
    "two makers": (with_kind(CONSUMERS, packed([b"g", 1, 2, b"", 3, 4, "x", "y"])), "argument"),
    "consumers out of order": (
        with_kind(CONSUMERS, packed([b"g", 1, 2, b"", 3, 4, ""], [b"a", 1, 2, b"", 3, 4, ""])),
        "out of order",
    ),
    "other counts": (with_kind(END, packed([1, 1, 1])), "its end says"),
    "consumers that are not counted": (with_kind(END, packed(END_ROW[:3])), "its end says"),
    "two counts": (with_kind(END, packed(END_ROW[:2])), "its end says"),
    "no end": (FRAMES[:-1], "cut short"),
    "an end without counts": ([FRAMES[0], (END, 0, b"")], "cut short"),
    "counts that come twice": (with_kind(END, packed(END_ROW, END_ROW)), "a second end"),
    "an item that never ends": ([*FRAMES[:-1], (END, CONTINUED, FRAMES[-1][2])], "cut short"),
    "something behind the end": ([*FRAMES, FRAMES[-1]], "comes after one of kind"),
}


@pytest.mark.parametrize("what", WRONG)
def test_impossible_frames_are_corrupt(what: str) -> None:
    """No part of it is used, and the message names the fault."""
    frames, words = WRONG[what]
    with pytest.raises(CorruptSnapshot, match=words):
        restore(frames)


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([(9, 0, b"")], "kind 9"),
        ([(HEAD, 2, b"")], "flags 0x2"),
        (with_head(limits=[["a_limit_of_a_later_version", 5]]), "a_limit_of_a_later_version"),
    ],
)
def test_frames_of_a_later_version_are_unknown(frames: list[Frame], words: str) -> None:
    """Another kind of frame, flag or limit is no damage: upgrade."""
    with pytest.raises(UnknownSnapshot, match=words):
        restore(frames)


def test_a_frame_that_claims_too_much_is_not_waited_for() -> None:
    """Its size is checked before its bytes are there, so that a damaged one cannot make the node hoard memory."""
    with pytest.raises(CorruptSnapshot, match="claims"):
        StateMachine.restore([_HEAD.pack(SNAPSHOT_MAGIC, 1, HEAD, 0, CHUNK_BYTES_MAX) + b"\0" * 4])


def test_pitfall_77_a_snapshot_names_the_cluster_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The restored state is of the version that it was taken at, or it would apply what follows by the rules of
    another. One that this code does not know is refused, as is a head that says none, or one too many."""
    driver = mixture.driven(60)
    (kind, flags, payload), *others = frames_of(driver.machine)
    row = msgpack.unpackb(payload, raw=False)
    assert row[-1] == CLUSTER_VERSION
    newer = [(kind, flags, packed([*row[:-1], CLUSTER_VERSION + 1])), *others]
    with pytest.raises(UnknownSnapshot, match=f"version {CLUSTER_VERSION + 1}, this code knows up to"):
        restore(newer)
    for wrong in (row[:-1], [*row, 2], [*row[:-1], "2"]):
        with pytest.raises(CorruptSnapshot):
            restore([(kind, flags, packed(wrong)), *others])
    monkeypatch.setattr(versions, "CLUSTER_VERSION", CLUSTER_VERSION + 1)
    assert restore(newer).version == CLUSTER_VERSION + 1
