"""The trace: equal digests from both kinds, columns that stay in place, messages that a reader can follow."""

from raftlog.chaos.sim.ground.outcome import Fault
from raftlog.chaos.sim.ground.trace import Recorder, Trace, describe, header
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.messages import (
    AppendEntries,
    AppendEntriesReply,
    InstallSnapshot,
    RequestVote,
    RequestVoteReply,
    TimeoutNow,
)
from tests.raft.lab import at, drain, make_core


def a_leader() -> RaftCore:
    """A single node, which leads as soon as its election timeout is over."""
    core = make_core(1, 1)
    core.tick(at(core.next_deadline_ms()))
    drain(core)
    return core


def tell(trace: Trace, core: RaftCore) -> None:
    """One of everything that a world can say."""
    for node in (1, 2, 3):
        trace.state(0, node, None)
    trace.state(1_000, 1, core)
    trace.line(1_500, 1, "acknowledges", 7, "x")
    trace.sent(1, 2_000, RequestVote(sender=1, to=2, term=4, last_index=3, last_term=2))
    trace.sent(2, 2_000, TimeoutNow(sender=1, to=3, term=4, last_index=3))
    trace.delivered(1, 2_500)
    trace.delivered(1, 2_600)
    trace.lost(2, 2_700, "cut")
    trace.fault(Fault(9, 3_000, "cut", (1, 2), "both ways", 500_000))
    trace.state(4_000, 1, None)


def test_both_kinds_give_the_same_digest() -> None:
    """A seed that is looked at with a Recorder is known to be the run that a Trace saw fail."""
    core = a_leader()
    plain, full = Trace(), Recorder(lambda _: None)
    assert plain.digest() == full.digest()
    tell(plain, core)
    tell(full, core)
    assert plain.digest() == full.digest()
    assert len(plain.digest()) == 16


def test_each_thing_said_changes_the_digest() -> None:
    """Every event of a world is in the digest, and reading the digest in between changes nothing."""
    core = a_leader()
    told: list[str] = []

    class Asking(Trace):
        def _add(self, line: str) -> None:
            super()._add(line)
            told.append(self.digest())

    asking, plain = Asking(), Trace()
    tell(asking, core)
    tell(plain, core)
    assert len(set(told)) == len(told) == 12
    assert told[-1] == plain.digest()


def test_the_text_has_fixed_columns() -> None:
    """Every row begins its last column where the header says; it shows the acting node and every node's role."""
    text: list[str] = []
    tell(Recorder(text.append), a_leader())
    at = header().index("what")
    assert all(line[at - 2 : at] == "  " for line in text)
    assert [line[at:] for line in text[1:]] == [
        "is leader in term 2",
        "acknowledges 7 x",
        "-> 2 RequestVote t4 last 3@2 #1",
        "-> 3 TimeoutNow t4 #2",
        "<- 1 RequestVote #1",
        "<- 1 RequestVote #1",
        "x  1 TimeoutNow #2 lost: cut",
        "FAULT 9 cut on 1, 2 for 0.500 s both ways",
        "is down in term 2",
    ]
    assert text[2].split()[:4] == ["0.001500", "1", "L--", "2"]
    assert text[-1].split()[2] == "---"


def test_messages_in_words() -> None:
    """The fields that the protocol decides by are all there."""
    append = AppendEntries(sender=1, to=2, term=5, prev_index=8, prev_term=4, commit=7, round=3)
    assert describe(append) == "AppendEntries t5 after 8@4 commit 7 round 3"
    reply = AppendEntriesReply(
        sender=2, to=1, term=5, success=False, match=0, prev_index=8, round=3, hint_index=6, hint_term=2
    )
    assert describe(reply) == "AppendEntriesReply t5 no 8, hint 6@2 round 3"
    vote = RequestVoteReply(sender=2, to=1, term=5, request_term=6, granted=True, pre=True)
    assert describe(vote) == "RequestVoteReply t5 pre granted for t6"
    chunk = InstallSnapshot(
        sender=1, to=2, term=5, snapshot_index=9, snapshot_term=4, offset=3, total=8, crc=0, done=False, data=b"abc"
    )
    assert describe(chunk) == "InstallSnapshot t5 9@4 bytes 3+3 of 8"
