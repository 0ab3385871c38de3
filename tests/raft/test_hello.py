"""Whose process may speak: each refusal of a peer's hello, and its words."""

import pytest

from raftlog.raft.codec.checks import INDEX_MAX, Corrupt
from raftlog.raft.hello import (
    BOOT_JUMP_MAX,
    NEVER_MET,
    PeerProcess,
    Start,
    decode_start,
    encode_start,
    refusal,
)


@pytest.mark.parametrize(
    ("sender", "boot", "words"),
    [(2, 4, None), (2, 5, None), (9, 4, None), (1, 9, "it is this one"), (2, 3, "its data folder is an old copy")],
)
def test_a_hello_is_refused_of_this_node_and_of_a_disk_that_was_rolled_back(
    sender: int, boot: int, words: str | None
) -> None:
    """Every other one is taken, also of a node that this configuration does not name: it may have joined meanwhile (4
    starts of the sender's disk were seen)."""
    told = refusal(sender=sender, boot=boot, knows=1, node=1, met=PeerProcess(4), version=1)
    assert (told is None) if words is None else (told is not None and words in told)


def test_pitfall_71_the_hello_of_a_program_below_the_cluster_version_is_refused() -> None:
    """It could not apply newer entries; a program that knows a newer version is welcome: that is how the version
    rises.
    """
    told = {knows: refusal(sender=2, boot=4, knows=knows, node=1, met=PeerProcess(4), version=2) for knows in (1, 2, 3)}
    assert told[2] is told[3] is None
    assert told[1] is not None
    assert "the cluster is at version 2: start a newer version of raftlog on node 2" in told[1]


START = Start(run=0xABC, last_index=7, last_term=2, term=3, floor=4)
START_TEXT = "run=0000000000000abc last=7@2 term=3 floor=4"


def test_a_start_survives_its_text() -> None:
    """Also with the largest numbers."""
    largest = Start(run=INDEX_MAX, last_index=INDEX_MAX, last_term=INDEX_MAX, term=INDEX_MAX, floor=INDEX_MAX)
    assert encode_start(START) == START_TEXT
    assert all(decode_start(encode_start(each)) == each for each in (START, largest))


def test_words_that_a_later_version_adds_to_a_start_are_passed_over() -> None:
    """A hello of the next version must not be refused by this one in a rolling upgrade."""
    assert decode_start(f"{START_TEXT} free=12 more=x@y") == START


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "run=0000000000000abc",
        f" {START_TEXT}",
        f"{START_TEXT} ",
        f"{START_TEXT} Free=1",
        f"{START_TEXT}\n",
        START_TEXT.replace("abc", "0"),
        START_TEXT.replace("abc", "ABC"),
        START_TEXT.replace("run=0000000000000abc", f"run={0:016x}"),
        START_TEXT.replace("last=7", "last=-7"),
        START_TEXT.replace("last=7", f"last={INDEX_MAX + 1}"),
        START_TEXT.replace("last=7", "last=\u0667"),
        START_TEXT.replace("term=3", "term=1"),
        f"{START_TEXT} more={'x' * 600}",
    ],
)
def test_any_other_text_of_a_start_is_corrupt(text: str) -> None:
    """Too long, a number out of bounds, a run of 0, a term below that of the newest entry, other digits."""
    with pytest.raises(Corrupt, match="a hello says of its process"):
        decode_start(text)


@pytest.mark.parametrize(
    ("met", "run", "is_taken"),
    [
        (PeerProcess(4, 0xA, "n:1"), 0xA, True),
        (PeerProcess(4, 0xA, "n:1"), 0xB, False),
        (PeerProcess(3, 0xA, "n:1"), 0xB, True),
        (PeerProcess(4, 0, "n:1"), 0xB, True),
        (PeerProcess(4, 0xA, "n:1"), 0, True),
    ],
)
def test_a_second_process_with_the_same_boot_counter_is_refused_and_both_are_named(
    met: PeerProcess, run: int, is_taken: bool
) -> None:
    """A clone of the data folder, or an old copy that was started until its counter was high enough. A process of an
    older program sends no run: only the boot counter shows it.
    """
    told = refusal(sender=2, boot=4, knows=1, node=1, met=met, version=1, run=run, where="m:2")
    if is_taken:
        assert told is None
    else:
        assert told is not None
        assert "run 000000000000000a from n:1" in told
        assert "run 000000000000000b from m:2 is refused" in told


def test_a_clone_of_a_running_node_is_refused() -> None:
    """It says the boot counter of the process that was met, and another run."""
    met = PeerProcess(4, 0xA, "n:1")
    assert refusal(sender=2, boot=4, knows=1, node=1, met=met, version=1, run=0xA, where="n:1") is None
    assert refusal(sender=2, boot=4, knows=1, node=1, met=met, version=1, run=0xB, where="m:2") is not None


def test_a_boot_counter_cannot_jump_without_bound() -> None:
    """A disk is started so many times more at most between two hellos of it: a higher counter is a forged one."""
    asked = {"sender": 2, "knows": 1, "node": 1, "version": 1, "met": PeerProcess(7, 5, "a:1"), "run": 6}
    assert refusal(boot=7 + BOOT_JUMP_MAX, **asked) is None  # type: ignore[arg-type]
    told = refusal(boot=8 + BOOT_JUMP_MAX, **asked)  # type: ignore[arg-type]
    assert told is not None
    assert "says it was started 1000008 times, and 7 were seen" in told
    assert refusal(boot=8 + BOOT_JUMP_MAX, **asked | {"met": NEVER_MET}) is None  # type: ignore[arg-type]
