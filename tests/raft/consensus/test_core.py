"""RaftCore as its driver sees it: inputs, Readies, status, deadlines, restarts."""

from dataclasses import replace

import pytest

from raftlog.raft.codec.checks import INDEX_MAX
from raftlog.raft.consensus.state import TERM_JUMP_MAX
from raftlog.raft.events import MessageIgnored
from raftlog.raft.messages import Message, RequestVote
from raftlog.raft.options import Options
from raftlog.raft.types import NOBODY, EntryKind, Mark
from tests.raft.lab import Lab, append, append_entries, at, drain, extend, lead, make_core, reply


def test_core_without_input_has_nothing_ready() -> None:
    """Each input makes `is_touched` true, and taking what there is makes it false; so does a sync that commits nothing.
    The labs and the stories check at each of their steps that a core which says no gives no Ready."""
    core = make_core(1, 3)

    def is_touched() -> bool:
        return core.state.is_touched

    drain(core)
    assert not is_touched()
    lead(core, now_ms=500)
    reply(core, 2, match=2, now_ms=550)
    assert is_touched()
    drain(core, 550)
    assert not is_touched()
    proposed = core.propose(EntryKind.COMMANDS, 1, b"x", at(600))
    assert is_touched()
    drain(core, 600, sync=False)
    core.persisted(proposed.term, proposed.last, at(610))
    assert not is_touched(), "no follower has the entry yet: nothing is committed by this"
    reply(core, 2, match=proposed.last, now_ms=620)
    assert is_touched()


def test_core_speaks_for_its_own_group_only() -> None:
    """All that a core of group 2 sends names group 2. A message of another group, though it comes from a member and for
    this node, is ignored and changes nothing."""
    core = make_core(1, 3)
    core.state.shard = 2
    drain(core)
    core.tick(at(core.next_deadline_ms()))
    asked = drain(core, core.state.now.monotonic_ms).messages
    assert {message.shard for message in asked} == {2}
    term = core.state.term
    message = append_entries(prev=(0, 0), term=9, commit=0, shard=2)
    for shard in (0, 1):
        core.step(replace(message, shard=shard), at(900))
        (event,) = drain(core, 900).events
        assert isinstance(event, MessageIgnored)
        assert event.reason == f"it is from node 2 for node 1, shard {shard}"
    assert core.state.term == term
    core.step(message, at(900))
    assert core.state.term == 9
    assert {message.shard for message in drain(core, 900).after_sync} == {2}


def test_deadlines_name_the_next_tick() -> None:
    """Followers: the election timeout after the last contact; leaders: the heartbeat, or the end of a transfer."""
    core = make_core(1, 3, options=Options(transfer_timeout_ms=20))
    assert core.next_deadline_ms() == 300
    append(core, prev=(1, 1), term=1, sender=2, now_ms=100)
    assert core.next_deadline_ms() == 400
    lead(core)
    assert core.next_deadline_ms() == 460
    core.transfer(2, at(400))
    assert core.next_deadline_ms() == 420


@pytest.mark.parametrize(
    ("kind", "count", "data"),
    [
        (EntryKind.NOOP, 1, b""),
        (EntryKind.CONFIGURATION, 1, b"x"),
        (EntryKind.CLOCK, 2, b""),
        (EntryKind.CLOCK, 1, b"x"),
    ],
)
def test_only_commands_and_clock_entries_are_proposed(kind: EntryKind, count: int, data: bytes) -> None:
    """No-ops are the leader's own, configurations have their own way in."""
    core = make_core(1, 3)
    lead(core)
    with pytest.raises(AssertionError):
        core.propose(kind, count, data, at(400))


def test_the_first_entry_of_a_term_chains_to_the_last_of_the_one_before() -> None:
    """The leader names the CRC of the header before, also when that came from another leader or from disk."""
    lab = Lab(3)
    lab.elect(1)
    lab.propose(1)
    lab.run(100)
    lab.stop(1)
    lab.elect(2)
    lab.propose(2)
    lab.run(100)
    lab.start(3, tail=0)
    lab.run(1_500)
    assert lab.disks[2] == lab.disks[3]
    for before, after in zip(lab.disks[3], lab.disks[3][1:], strict=False):
        assert after.header[52:56] == before.header[60:64]


def test_applied_never_passes_the_given_entries() -> None:
    """It neither falls nor runs ahead."""
    core = make_core(1, 3, 1, 1)
    append(core, prev=(3, 1), term=1, commit=3)
    with pytest.raises(AssertionError):
        core.applied(4)
    with pytest.raises(AssertionError):
        core.applied(2)


def test_messages_without_a_sender_are_ignored() -> None:
    """Node 0 is no node (pitfall 28: a message for another node or cluster)."""
    core = make_core(1, 3)
    core.step(append_entries(prev=(1, 1), term=9, sender=0), at(0))
    assert core.status().term == 1


@pytest.mark.parametrize("kind", ["append", "vote"])
def test_one_message_cannot_raise_the_term_beyond_all_elections(kind: str) -> None:
    """A member can send any term. After the newest term that a message can have, no
    election is possible: the cluster would have no leader for good, restarts included. So a jump that no number of
    elections makes is not believed. A smaller one is, and the cluster elects its next leader above it.

    Guard: `TERM_JUMP_MAX` of raft/consensus/state.py.
    """
    for jump, is_believed in ((INDEX_MAX - 10, False), (TERM_JUMP_MAX + 1, False), (TERM_JUMP_MAX, True)):
        lab = Lab(3)
        lab.run(1_000)
        (leader,) = lab.leaders()
        victim, sender = (node for node in (1, 2, 3) if node != leader)
        term = lab.cores[leader].state.term
        lab.now_ms += lab.options.election_timeout_min_ms  # no vote is asked of a node that hears its leader
        message: Message = append_entries(prev=(0, 0), term=term + jump, sender=sender, to=victim, commit=0)
        if kind == "vote":
            message = RequestVote(
                sender=sender,
                to=victim,
                term=term + jump,
                last_index=99,
                last_term=9,
                pre=False,
                transfer=True,
                link_closed=False,
            )
        lab.cores[victim].step(message, at(lab.now_ms))
        lab.settle()
        assert (lab.cores[victim].state.term == term + jump) == is_believed
        lab.run(3_000)
        (leader,) = lab.leaders()
        assert term <= lab.cores[leader].state.term <= term + jump + 5
        assert (lab.cores[leader].state.term == term) != is_believed


def test_a_fetch_of_an_earlier_time_is_ignored() -> None:
    """A request of a former leader, or from before a change, has no effect."""
    core = make_core(1, 3, *[1] * 10, tail=1)
    lead(core)
    reply(core, 2, match=0, success=False, prev=11, hint=(4, 1))
    reply(core, 2, match=4, prev=4)
    (fetch,) = drain(core).fetches
    append(core, extend(core.state.log.last, 9), prev=(12, 2), term=9, sender=3)
    core.fetched(fetch, tuple(extend(Mark(4, 1), 1)), at(500))
    assert not drain(core).to(2)
    core.fetched(replace(fetch, peer=NOBODY), tuple(extend(Mark(4, 1), 1)), at(500))
    assert drain(core).committed == []
