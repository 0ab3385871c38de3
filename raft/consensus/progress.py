"""Tracks one follower, as its leader sees it: the proved end of its log, sent messages, messages in flight.

States as in etcd-io/raft: *probe* sends one message and waits (where do the logs agree?), *replicate* streams within a
window, *snapshot* sends the state because the log no longer has the next entry. `sent` is etcd's next - 1, so every
position is the end of an entry.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from raftlog.raft.options import Options
from raftlog.raft.ready import Fetch, SnapshotFetch
from raftlog.raft.types import Entry, Mark

PACE_LOOK_MS: Final = 1_000
PACE_LOOKS: Final = 60
"""A follower that is behind should be back within so many looks: else more is sent at a time."""


FETCH_CHUNKS_MAX: Final = 4
"""Chunks of a snapshot asked from disk together: a trip to the reading thread takes longer than reading one."""

FIRST_CHUNKS: Final = 4
"""Chunks of a snapshot that leave before the first answer. With one, the window grows two round trips longer."""


class Mode(StrEnum):
    """How the leader treats a follower."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Hold(NamedTuple):
    """What a follower without room on its disk is sent: entries that begin at or before `entries_to`, and a snapshot
    only if `takes_snapshot`. If those entries do not fit on its disk (`is_far`), it gets a snapshot of `entries_to` or
    later in place of them. Heartbeats, commit indexes and questions about its log are sent all the same."""

    entries_to: int
    takes_snapshot: bool
    is_far: bool = False


@dataclass(slots=True)
class Upload:
    """A snapshot on its way to a follower: some chunks are asked from disk, and a window of them is under way.

    The window begins with FIRST_CHUNKS, or with one chunk after a loss, and grows by a chunk with each answer. Answers
    that come late halve it, once a round trip. So it settles at the pace of the line and of the follower's disk (by the
    delay, as TCP Vegas does).
    """

    mark: Mark
    offset: int = 0  # everything before it is written there
    sent: int = 0  # up to here it left
    total: int = 0  # bytes of it, once the disk has reported them
    fetch: SnapshotFetch | None = None  # of what follows `sent`
    inflight: deque[tuple[int, int]] = field(default_factory=deque)  # (end, when it left) of each unanswered chunk
    window_bytes: int = 0  # may be under way; a single chunk always
    quickest_ms: int | None = None  # the shortest time until an answer
    halved_ms: int = -1  # when the window was halved
    heard_ms: int = 0  # when the newest answer came that was news
    is_doubted: bool = False  # it had to leave again: the next answer says where to go on, be it further back

    def go_to(self, offset: int) -> None:
        """What follows `offset` leaves next, whatever left before."""
        self.offset = self.sent = offset
        self.fetch = None
        self.inflight.clear()
        self.window_bytes = 0
        self.is_doubted = False

    def note_sent(self, size: int, now_ms: int) -> None:
        """The chunk at `sent` left."""
        self.fetch = None
        self.sent += size
        self.inflight.append((self.sent, now_ms))

    def note_written(self, offset: int, now_ms: int, options: Options) -> None:
        """The follower has everything before `offset`, which is news. Sets the window for what follows."""
        size, left_ms = offset - self.offset, None
        self.offset, self.heard_ms, self.is_doubted = offset, now_ms, False
        while self.inflight and self.inflight[0][0] <= offset:
            left_ms = self.inflight.popleft()[1]
        if self.sent < offset:
            self.go_to(offset)
        if left_ms is not None:
            took_ms = now_ms - left_ms
            self.quickest_ms = took_ms if self.quickest_ms is None else min(self.quickest_ms, took_ms)
            if took_ms <= self.quickest_ms + options.snapshot_queue_ms:
                self.window_bytes = min(self.window_bytes + size, options.snapshot_window_bytes)
            elif left_ms > self.halved_ms:
                self.window_bytes, self.halved_ms = self.window_bytes // 2, now_ms

    def is_silent(self, now_ms: int, options: Options) -> bool:
        """Whether chunks are under way, and no news came for too long."""
        return bool(self.inflight) and now_ms - max(self.inflight[0][1], self.heard_ms) >= options.snapshot_retry_ms

    def has_room(self, options: Options) -> bool:
        """Whether another chunk may leave."""
        if self.total and self.sent >= self.total:
            return False
        return not self.inflight or self.sent - self.offset + options.snapshot_chunk_bytes <= self.window_bytes

    def room_bytes(self, options: Options) -> int:
        """How many bytes may leave, where there is room: whole chunks, FETCH_CHUNKS_MAX at most."""
        chunk = options.snapshot_chunk_bytes
        room = (self.window_bytes - (self.sent - self.offset)) // chunk
        return chunk * max(1, min(room, FETCH_CHUNKS_MAX))


@dataclass(slots=True)
class CatchUpPace:
    """How many messages may be under way to a follower that lacks committed entries: one leaves disks and processors
    to the followers that do not."""

    messages_max: int = 1
    look_ms: int = 0  # when to look again whether that is enough
    lag: int | None = None  # records it lacked at the last look; None: it was not behind

    def look(self, lag: int, now_ms: int, window: int) -> None:
        """Looks at a follower that lacks `lag` committed records; 0: none, or it is not streamed to (probe, snapshot).

        A follower that would not catch up within PACE_LOOKS looks gets twice as many messages, up to the whole window.
        It keeps them until it has caught up: if a faster follower got fewer again, it would stay behind while others
        write. One that is not streamed to begins again with one.
        """
        if not lag:
            self.messages_max, self.lag = 1, None
        elif self.lag is None or now_ms >= self.look_ms:
            if self.lag is not None and (self.lag - lag) * PACE_LOOKS < lag:
                self.messages_max = min(2 * self.messages_max, window)
            self.lag, self.look_ms = lag, now_ms + PACE_LOOK_MS


@dataclass(slots=True)
class FollowerProgress:
    """One follower. `match <= sent` always (pitfall 23: progress that falls below match)."""

    sent: int  # probe: where to ask; replicate: up to here entries were sent
    contact_ms: int  # monotonic time at which it was last heard in this term
    match: int = 0  # proved equal and durable there
    mode: Mode = Mode.PROBE
    is_exact: bool = True  # whether an entry is known to end at `sent` (below the tail only the disk knows)
    is_waiting: bool = False  # probe: the question is out; also: the disk had nothing. Until the next heartbeat
    commit_sent: int = 0  # highest commit index that a message could convey
    round: int = 0  # newest read round it echoed
    # an answer to an earlier round is that of another disk under the same number (pitfall 20: a late reply moves the
    # progress)
    round_first: int = 0
    fetch: Fetch | None = None  # asked from disk for it
    run: int = 0  # of the process that `match` is of; 0: unknown (raftlog.raft.consensus.recall)
    heal_at: int = 0  # once `match` is there, it has all that it ever acknowledged and that is or can be committed
    doubted_in: int = 0  # it rejected what it acknowledged: an answer of this round or later proves that it lost it
    lost: int = 0  # it acknowledged up to here and lost it while it ran: it is informed until it confirms
    match_at_heartbeat: int = -1
    inflight: deque[tuple[int, int]] = field(default_factory=deque)  # (end, bytes) of each unanswered message
    inflight_bytes: int = 0
    sending: Upload | None = None  # snapshot
    hold: Hold | None = None  # its disk is full (RaftCore.hold); None: it takes everything
    pace: CatchUpPace = field(default_factory=CatchUpPace)

    def has_room(self, options: Options) -> bool:
        """Whether another message with entries may be sent."""
        return len(self.inflight) < options.inflight_messages_max and self.inflight_bytes < options.inflight_bytes_max

    def takes(self, after: int) -> bool:
        """Whether the entry after the end `after` may be sent."""
        return self.hold is None or (after < self.hold.entries_to and not self.hold.is_far)

    def is_for(self, snapshot: int) -> bool:
        """Whether it gets a snapshot of that index in place of the entries, although the log has them."""
        hold = self.hold
        return hold is not None and hold.is_far and self.match < hold.entries_to <= snapshot

    def taken(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Those of consecutive entries that may be sent."""
        if self.hold is None:
            return entries
        return tuple([entry for entry in entries if self.takes(entry.before)])

    def look_at_pace(self, lag: int, now_ms: int, options: Options) -> None:
        """Decides how many messages may be under way to a follower that lacks `lag` committed records (0: none)."""
        self.pace.look(lag if self.mode is Mode.REPLICATE else 0, now_ms, options.inflight_messages_max)

    def note_sent(self, end: int, size: int) -> None:
        """A message with entries up to `end` left, in replicate."""
        self.sent = end
        self.inflight.append((end, size))
        self.inflight_bytes += size

    def note_match(self, match: int) -> bool:
        """It proved equality up to `match`; whether that is news. Ends a probe that asked at or below it."""
        is_news = match > self.match
        if is_news:
            self.match = match
            inflight = self.inflight
            while inflight and inflight[0][0] <= match:
                self.inflight_bytes -= inflight.popleft()[1]
        if self.mode is Mode.REPLICATE:
            self.sent = max(self.sent, match)
        elif match >= self.sent and self.is_exact:
            self.sent = match
            self._restart(Mode.REPLICATE)
        return is_news

    def probe(self, sent: int, *, is_exact: bool = True) -> None:
        """Ask (again) whether the logs agree at `sent`."""
        self.sent = max(sent, self.match)
        self.is_exact = is_exact or self.sent == self.match
        self._restart(Mode.PROBE)

    def need_snapshot(self, sent: int) -> None:
        """The log no longer has the follower's next entry: send a snapshot from the next heartbeat on.

        Heartbeats ask whether the follower got the entries in another way.
        """
        self.sent = max(sent, self.match)
        self.is_exact = True
        self._restart(Mode.SNAPSHOT)
        self.is_waiting = True

    def _restart(self, mode: Mode) -> None:
        self.mode = mode
        self.is_waiting = False
        self.commit_sent = 0
        self.fetch = None
        self.sending = None
        self.inflight.clear()
        self.inflight_bytes = 0
