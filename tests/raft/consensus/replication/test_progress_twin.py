"""Compares one follower's progress with a naive twin, which keeps every message and counts all of them each time."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raftlog.raft.consensus.progress import FollowerProgress, Mode
from raftlog.raft.options import Options


@dataclass
class Twin:
    """Every message with entries that left since the last change of mode, and everything that was ever proved."""

    asked: int
    is_exact: bool = True
    mode: Mode = Mode.PROBE
    messages: list[tuple[int, int]] = field(default_factory=list)
    proved: list[int] = field(default_factory=lambda: [0])

    @property
    def match(self) -> int:
        return max(self.proved)

    @property
    def sent(self) -> int:
        if self.mode is Mode.REPLICATE:
            return max([self.asked, self.match, *[end for end, _ in self.messages]])
        return max(self.asked, self.match)

    def flight(self) -> list[tuple[int, int]]:
        return [(end, size) for end, size in self.messages if end > self.match]


class Comparison(RuleBasedStateMachine):
    """Sends, answers (late ones, too), mismatches and lost links in any order."""

    @initialize(last=st.integers(0, 30), messages=st.integers(1, 4), size=st.integers(1, 400))
    def start(self, last: int, messages: int, size: int) -> None:
        """A new leader asks at the end of its own log."""
        self.options = Options(inflight_messages_max=messages, inflight_bytes_max=size)
        self.progress = FollowerProgress(sent=last, contact_ms=0)
        self.twin = Twin(last)

    @precondition(lambda self: self.progress.mode is Mode.REPLICATE)
    @rule(count=st.integers(1, 5), size=st.integers(1, 200))
    def send(self, count: int, size: int) -> None:
        """A message with entries, if the window has room."""
        flight = self.twin.flight()
        has_room = len(flight) < self.options.inflight_messages_max
        has_room = has_room and sum(size for _, size in flight) < self.options.inflight_bytes_max
        assert self.progress.has_room(self.options) == has_room
        if has_room:
            end = self.progress.sent + count
            self.progress.note_sent(end, size)
            self.twin.messages.append((end, size))

    @rule(back=st.integers(0, 12))
    def answer(self, back: int) -> None:
        """It proves that the logs are equal up to a place that was asked about, now or earlier."""
        match = max(0, self.progress.sent - back)
        is_news = match > self.twin.match
        assert self.progress.note_match(match) == is_news
        self.twin.proved.append(match)
        if self.twin.mode is not Mode.REPLICATE and match >= self.twin.sent and self.twin.is_exact:
            self.twin.mode, self.twin.asked, self.twin.messages = Mode.REPLICATE, match, []

    @rule(back=st.integers(0, 12), is_exact=st.booleans())
    def step_back(self, back: int, is_exact: bool) -> None:
        """Ask further down, perhaps at a place of which only the disk knows whether an entry ends there."""
        asked = max(0, self.progress.sent - back)
        self.progress.probe(asked, is_exact=is_exact)
        self.twin = Twin(asked, is_exact or max(asked, self.twin.match) == self.twin.match, proved=self.twin.proved)

    @rule(first=st.integers(0, 30))
    def need_snapshot(self, first: int) -> None:
        """The follower's next entry is no longer in the log."""
        self.progress.need_snapshot(first)
        self.twin = Twin(first, mode=Mode.SNAPSHOT, proved=self.twin.proved)

    @invariant()
    def agree(self) -> None:
        """Mode, marks and the bytes in flight agree, and `match <= sent` (pitfall 23: progress that falls below
        match).
        """
        if not hasattr(self, "twin"):
            return
        progress, twin = self.progress, self.twin
        assert (progress.mode, progress.match, progress.sent) == (twin.mode, twin.match, twin.sent)
        assert list(progress.inflight) == twin.flight()
        assert progress.inflight_bytes == sum(size for _, size in twin.flight())
        assert progress.match <= progress.sent


TestProgressAgainstTwin = Comparison.TestCase
TestProgressAgainstTwin.settings = settings(max_examples=50, stateful_step_count=30)
