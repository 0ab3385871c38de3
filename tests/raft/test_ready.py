"""The order in which a Ready is carried out: the queue before the disk, with a batch in flight."""

from dataclasses import dataclass, field

from hypothesis import given, settings, strategies as st

from raftlog.raft.messages import AppendEntriesReply, Message, RequestVoteReply
from raftlog.raft.ready import Ready, SyncBatch, SyncQueue, without_void_promises
from raftlog.raft.types import GENESIS, Entry, HardState
from tests.raft.lab import extend


def promise(match: int, *, success: bool = True) -> AppendEntriesReply:
    """An acknowledgement up to `match`."""
    return AppendEntriesReply(sender=1, to=2, term=1, success=success, match=match, prev_index=0, round=0)


def test_readies_behind_a_sync_become_one_batch() -> None:
    """The newest hard state, all entries, all messages, in order; then the queue is empty."""
    first, second = extend(GENESIS, 1, 1)
    queue = SyncQueue()
    queue.add(Ready(hard_state=HardState(1, 2), entries=(first,), messages_after_sync=(promise(1),)))
    queue.add(Ready(hard_state=HardState(2, 3)))
    queue.add(Ready(entries=(second,), messages_after_sync=(promise(2),)))
    batch = queue.take()
    assert (batch.hard_state, batch.cut_after) == (HardState(2, 3), None)
    assert (batch.entries, batch.last) == ((first, second), second)
    assert batch.messages == (promise(1), promise(2))
    assert queue.is_empty
    assert queue.take().last is None


def test_a_cut_on_waiting_entries_only_drops_them() -> None:
    """The disk has nothing beyond those that stay, so nothing needs to be cut there."""
    entries = extend(GENESIS, 1, 1, 1)
    queue = SyncQueue()
    queue.add(Ready(entries=tuple(entries)))
    other = extend(entries[0].mark, 2)
    queue.add(Ready(cut_after=1, entries=tuple(other)))
    batch = queue.take()
    assert (batch.cut_after, batch.entries) == (None, (entries[0], *other))


def test_a_cut_that_reaches_taken_entries_goes_to_the_disk() -> None:
    """Entries of a batch in flight are cut by the next batch, however many cuts there were meanwhile."""
    entries = extend(GENESIS, 1, 1, 1)
    queue = SyncQueue()
    queue.add(Ready(entries=tuple(entries)))
    queue.take()
    two = extend(entries[1].mark, 2)
    queue.add(Ready(cut_after=2, entries=tuple(two)))
    three = extend(entries[0].mark, 3, 3)
    queue.add(Ready(cut_after=1, entries=tuple(three)))
    four = extend(three[0].mark, 4)
    queue.add(Ready(cut_after=2, entries=tuple(four)))
    batch = queue.take()
    assert (batch.cut_after, batch.entries) == (1, (three[0], *four))


def test_promises_of_entries_that_were_cut_while_they_waited_are_withdrawn() -> None:
    """They would say that something is durable which never reached the disk; refusals and votes stay."""
    entries = extend(GENESIS, 1, 1)
    queue = SyncQueue()
    refusal = promise(0, success=False)
    queue.add(Ready(entries=tuple(entries), messages_after_sync=(promise(1), promise(2), refusal)))
    queue.add(Ready(cut_after=1, entries=tuple(extend(entries[0].mark, 2)), messages_after_sync=(promise(2),)))
    assert queue.take().messages == (promise(1), refusal, promise(2))
    assert without_void_promises([promise(3), promise(4)], 3) == [promise(3)]


def test_a_hard_state_and_its_votes_leave_before_entries_that_wait_for_disk_space() -> None:
    """Acknowledgements of waiting entries stay behind, the newest to each node; all else that was said leaves with the
    hard state. The entries come later, as one batch with those that came meanwhile."""
    first, second, third = extend(GENESIS, 1, 1, 2)
    vote = RequestVoteReply(sender=1, to=3, term=2, request_term=2, granted=True, pre=False)
    queue = SyncQueue()
    queue.add(Ready(entries=(third,)))
    full = SyncBatch(HardState(1), None, (first, second), (promise(1), promise(2)))
    queue.put_back(full)
    queue.add(Ready(hard_state=HardState(2, 3), messages_after_sync=(vote, promise(0))))
    assert queue.take_promises() == (HardState(2, 3), None, (), (vote, promise(0)))
    assert queue.take_promises() == (None, None, (), ())
    assert queue.take() == (None, None, (first, second, third), (promise(2),))


def test_behind_a_cut_that_waits_for_disk_space_only_entries_below_it_are_acknowledged() -> None:
    """The cut may be done or not: what it keeps is durable either way."""
    first, second = extend(GENESIS, 1, 1)
    queue = SyncQueue()
    queue.put_back(SyncBatch(None, 1, tuple(extend(first.mark, 2)), (promise(1), promise(2))))
    assert second.index == 2
    assert queue.take_promises().messages == (promise(1),)
    assert queue.take().messages == (promise(2),)


@dataclass
class Disk:
    """What carrying out a batch leaves, and whether each promise is true when it leaves."""

    entries: list[Entry] = field(default_factory=list)
    hard_state: HardState = field(default_factory=HardState)

    def carry_out(self, batch: SyncBatch) -> tuple[Message, ...]:
        self.hard_state = batch.hard_state or self.hard_state
        if batch.cut_after is not None:
            self.entries = [entry for entry in self.entries if entry.index <= batch.cut_after]
        for entry in batch.entries:
            assert entry.before == (self.entries[-1].index if self.entries else 0)
            self.entries.append(entry)
        return batch.messages


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("cut"), st.integers(1, 6)),
        st.tuples(st.just("sync"), st.just(0)),
        st.tuples(st.just("full"), st.integers(0, 2)),
        st.tuples(st.just("first"), st.just(0)),
        st.tuples(st.just("promises"), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=200)
@given(ACTIONS)
def test_whenever_the_disk_is_idle_it_equals_the_log(actions: list[tuple[str, int]]) -> None:
    """Appends and cuts in any order, with syncs in between: after the last sync the disk holds exactly the log. Some
    batches find no disk space, before or after their cut, and come back; promises that need no entry leave meanwhile.
    """
    log: list[Entry] = []
    queue, disk = SyncQueue(), Disk()
    term = 1
    for kind, number in actions:
        previous = log[-1].mark if log else GENESIS
        if kind == "append":
            made = extend(previous, *[term] * number)
            log += made
            queue.add(Ready(entries=tuple(made), messages_after_sync=(promise(log[-1].index),)))
        elif kind == "cut" and number < len(log):
            term += 1
            del log[-number:]
            made = extend(log[-1].mark, term)
            cut_after = log[-1].index
            log += made
            queue.add(Ready(hard_state=HardState(term), cut_after=cut_after, entries=tuple(made)))
        elif kind == "full":
            batch = queue.take_first() if number == 2 else queue.take()
            disk.hard_state = batch.hard_state or disk.hard_state
            if number and batch.cut_after is not None:
                disk.entries = [entry for entry in disk.entries if entry.index <= batch.cut_after]
            queue.put_back(batch)
        else:
            take = {"sync": queue.take, "first": queue.take_first}.get(kind, queue.take_promises)
            for message in disk.carry_out(take()):
                assert isinstance(message, AppendEntriesReply)
                assert message.match <= (disk.entries[-1].index if disk.entries else 0)
            assert disk.hard_state.term in (0, term)
    disk.carry_out(queue.take())
    assert disk.entries == log
    assert queue.is_empty
