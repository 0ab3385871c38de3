"""Keeps the expected content of a simulated disk without decoding it, and compares it with each opening.

A start must find all synced entries, and none that was not written. Entries that were written but not synced may be
there or not.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace

from raftlog.chaos.sim.disk.files import MemoryFiles
from raftlog.raft.types import GENESIS, NEW_DISK, Entry, HardState, Mark
from raftlog.raft.wal.formats import HARD_STATE, segment_name
from raftlog.raft.wal.opening import OpenedShard


class SilentlyWrong(AssertionError):
    """The production's recovery returned an entry that was never written, lost one that was synced, or refused files
    that had no damage."""


@dataclass(slots=True)
class View:
    """What should be on the disk. `entries[:synced]` are durable; of the others any prefix may be found."""

    entries: list[Entry]
    ends: list[int]
    synced: int
    hard_state: HardState
    coming: HardState | None = None  # written, perhaps not synced
    snapshots: dict[int, Mark] = field(default_factory=dict)  # that were begun to get their name
    base: Mark = GENESIS  # the end before `entries`: of the snapshot that was installed
    installing: Mark | None = None  # a snapshot for which the log may have been dropped
    floor: int = 0  # in the newest durable hard state: it rises when entries are lost, and falls when they are back
    forgotten: frozenset[tuple[int, int]] = frozenset()  # entries that were durable before, until they are back
    is_healing: bool = False  # until then neither its copies nor its vote count, though nothing be forgotten
    is_uninformed: bool = False  # it lost a hard state, perhaps with a vote, and peers may still report that
    acked: tuple[int, int] = (0, 0)  # term and index of the newest entry that its own leader may have counted here

    def copy(self) -> View:
        """The same once more."""
        return replace(self, entries=self.entries[:], ends=self.ends[:], snapshots=dict(self.snapshots))

    @property
    def durable_last(self) -> int:
        """The end of the newest durable entry."""
        return self.ends[self.synced - 1] if self.synced else self.base.index

    @property
    def held(self) -> frozenset[tuple[int, int]]:
        """Index and term of each durable entry, and of the last one that the snapshot below them has."""
        snapshot = {(self.base.index, self.base.term)} - {(0, 0)}
        return frozenset((entry.index, entry.term) for entry in self.entries[: self.synced]) | snapshot

    @property
    def counted(self) -> frozenset[tuple[int, int]]:
        """Those of `held` that a leader may have counted here. It counts entries of its own term alone
        (docs/decisions/0017), so those that came from a leader of a later term are not among them."""
        return frozenset((index, term) for index, term in self.held if (term, index) <= self.acked)

    def entries_synced(self) -> None:
        """All entries are durable. With one of the floor's term or a later one it has all that it had again."""
        self.synced = len(self.ends)
        if self.entries:
            self._may_be_counted(self.entries[-1].mark)
        self._may_heal()

    def _may_be_counted(self, end: Mark) -> None:
        if end.term >= self.hard_state.term:
            self.acked = max(self.acked, (end.term, end.index))

    def hard_state_synced(self, state: HardState) -> None:
        """That hard state is durable. Raises SilentlyWrong where it lifts a floor too early."""
        self.hard_state, self.coming = state, None
        if self.is_healing and self.floor and not state.floor and not self._is_whole:
            raise SilentlyWrong(f"lifts the floor {self.floor} at {self._last}, and held {self._newest_forgotten}")
        self.floor = state.floor
        self.is_healing |= bool(state.floor)  # a node that lost no more than a vote goes under one, too
        self._may_heal()

    def lost(self, held: frozenset[tuple[int, int]], *, has_lost_votes: bool = False) -> None:
        """Those entries (index, term) were durable, and are gone without a trace; a lost vote is in none of them."""
        self.is_healing = True
        self.is_uninformed |= has_lost_votes
        self.forgotten |= held
        self._may_heal()

    def informed(self) -> None:
        """Its peers have reported what it had promised, and that is durable: no new vote contradicts an old one."""
        self.is_uninformed = False
        self._may_heal()

    @property
    def _last(self) -> tuple[int, int]:
        return (self.entries[self.synced - 1].term if self.synced else self.base.term), self.durable_last

    @property
    def _newest_forgotten(self) -> tuple[int, int]:
        return max(((term, index) for index, term in self.forgotten), default=(0, 0))

    @property
    def _is_whole(self) -> bool:
        """Whether all that was forgotten and can be committed is there again: logs are equal up to an equal entry, and
        an entry of a newer term came from a leader that had it."""
        return self._last >= self._newest_forgotten

    def _may_heal(self) -> None:
        if self.is_healing and self._is_whole and self._last[0] >= self.floor:
            self.is_healing, self.forgotten, self.floor = self.is_uninformed, frozenset(), 0

    def has(self, index: int, term: int) -> bool:
        """Whether the entry (index, term) is durable, in the log or in the snapshot that came instead of it."""
        if index <= self.base.index:
            return index < self.base.index or term == self.base.term
        position = bisect_right(self.ends, index) - 1
        return 0 <= position < self.synced and self.ends[position] == index and self.entries[position].term == term

    def between(self, after: int, to: int) -> list[Entry]:
        """The entries after the end `after`, up to the end `to`."""
        return self.entries[bisect_right(self.ends, after) : bisect_right(self.ends, to)]

    def installed(self, mark: Mark) -> None:
        """The log was dropped for a snapshot up to `mark`."""
        self.entries, self.ends, self.synced = [], [], 0
        self.base, self.installing = mark, None
        self._may_be_counted(mark)
        self._may_heal()

    def compare(self, opened: OpenedShard, files: MemoryFiles, *, was_hit: bool) -> None:
        """Raises SilentlyWrong unless the entries found are allowed; then takes them over.

        Header CRCs chain, so an equal end means an equal log. Durable entries may be missing only under a new floor,
        and that only where something `was_hit`.
        """
        last, state = opened.log.last, opened.hard_state
        may_be = [each for each in (self.hard_state, self.coming) if each is not None]
        known_floor = max(self.floor, *(each.floor for each in may_be))
        is_mended = opened.floor > known_floor or (was_hit and opened.floor == NEW_DISK)  # that floor cannot rise
        if is_mended:
            if not was_hit:
                raise SilentlyWrong(f"repairs files that had no damage: {opened.notices}")
            self.floor, self.is_healing = opened.floor, True
            self.forgotten |= self.held
        if is_mended and opened.snapshot is not None and last == opened.snapshot.mark == opened.log.base:
            self.installed(last)
        if self.installing is not None and opened.snapshot is not None and opened.snapshot.mark == self.installing:
            self.installed(self.installing)
        self.installing = None
        position = bisect_right(self.ends, last.index) - 1
        wanted = self.entries[position].mark if position >= 0 else self.base
        if (wanted.index, wanted.header_crc) != (last.index, last.header_crc) or (
            position + 1 < self.synced and not is_mended
        ):
            raise SilentlyWrong(f"found a log up to {last}; durable is {self.durable_last}, and the end there {wanted}")
        is_reached = last.term >= self.floor or any(not each.floor for each in may_be)
        if self.is_healing and opened.floor < self.floor and not is_reached:
            raise SilentlyWrong(f"forgot that it must not vote below {self.floor}: the floor is {opened.floor}")
        known = [(each.term, each.vote) for each in may_be]
        if was_hit and is_mended and last.term > self.hard_state.term:
            known.append((last.term, state.vote))  # the log knows a term that the hard state forgot
        if (state.term, state.vote) not in known or state.boot <= self.hard_state.boot:
            raise SilentlyWrong(f"found {state}, durable is {self.hard_state}")
        if opened.snapshot is not None and self.snapshots.get(opened.snapshot.mark.index) != opened.snapshot.mark:
            raise SilentlyWrong(f"found the snapshot {opened.snapshot}, which was never saved")
        del self.entries[position + 1 :], self.ends[position + 1 :]
        self.synced = min(self.synced, position + 1)
        nodes = files.nodes
        if all(nodes[segment_name(segment.first)].is_durable for segment in opened.journal.segments):
            self.entries_synced()
        if nodes[HARD_STATE].is_durable:
            self.hard_state_synced(state)
        else:
            self.coming = state
