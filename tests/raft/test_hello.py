"""Whose disk may speak: each refusal of a peer's hello and its words, and whose promises count."""

import pytest

from raft.hello import is_believed, refusal
from raft.messages import AppendEntries, AppendEntriesReply, Message, RequestVote, RequestVoteReply
from tests.raft.lab import configuration

MEMBERS = configuration(3)
THE_DISK, ANOTHER = f"{2:032x}", f"{3:032x}"

VOTE = RequestVoteReply(sender=2, to=1, term=4, request_term=4, granted=True)
ACKNOWLEDGEMENT = AppendEntriesReply(sender=2, to=1, term=4, success=True, match=3, prev_index=2, round=1)
CAMPAIGN = RequestVote(sender=2, to=1, term=4, last_index=3, last_term=2)
HEARTBEAT = AppendEntries(sender=2, to=1, term=4, prev_index=0, prev_term=0, commit=0, round=1)


@pytest.mark.parametrize(
    ("sender", "boot", "words"),
    [(2, 4, None), (2, 5, None), (9, 4, None), (1, 9, "it is this one"), (2, 3, "its data folder is an old copy")],
)
def test_a_hello_is_refused_of_this_node_and_of_a_disk_that_was_rolled_back(
    sender: int, boot: int, words: str | None
) -> None:
    """Every other one is taken, also of a node that this configuration does not name: it may have joined meanwhile (4
    starts of the sender's disk were seen)."""
    told = refusal(sender=sender, boot=boot, knows=1, node=1, boot_seen=4, version=1)
    assert (told is None) if words is None else (told is not None and words in told)


def test_pitfall_71_a_program_that_does_not_know_the_cluster_version_is_told_so_at_the_door() -> None:
    """It would apply what it cannot know; one that knows more than is in force is welcome: that is how it rises."""
    told = {knows: refusal(sender=2, boot=4, knows=knows, node=1, boot_seen=4, version=2) for knows in (1, 2, 3)}
    assert told[2] is told[3] is None
    assert told[1] is not None
    assert "the cluster is at version 2: start a newer version of raftlog on node 2" in told[1]


@pytest.mark.parametrize("message", [VOTE, ACKNOWLEDGEMENT])
def test_pitfall_46_a_promise_counts_only_from_the_disk_that_is_named(message: Message) -> None:
    """A wiped or foreign disk has forgotten what its number promised before."""
    assert is_believed(message, THE_DISK, MEMBERS)
    assert not is_believed(message, ANOTHER, MEMBERS)


@pytest.mark.parametrize("message", [CAMPAIGN, HEARTBEAT])
def test_requests_are_taken_from_a_disk_that_is_not_named(message: Message) -> None:
    """A node that slept through the replacement of its leader's disk hears of it from that leader alone."""
    assert is_believed(message, ANOTHER, MEMBERS)


def test_a_stranger_is_believed() -> None:
    """Its promises are counted by nobody whose configuration does not name it, and harm nothing."""
    assert is_believed(
        AppendEntriesReply(sender=9, to=1, term=4, success=True, match=3, prev_index=2, round=1), "", MEMBERS
    )
