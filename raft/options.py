"""Tunables of the consensus core, in milliseconds, counts and bytes, validated once.

Every limit has its name here; defaults follow DESIGN section 3 (a local network: heartbeat 60 ms, elections
drawn from 300 to 600 ms).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """What a core may be told. Raises ValueError naming the field, its value and the bound it breaks."""

    heartbeat_ms: int = 60
    election_timeout_min_ms: int = 300
    election_timeout_max_ms: int = 600
    # After the leader's link closed, a follower waits a random time in this range for the leader's next heartbeat. A
    # leader that lives dials again at once and sends one as soon as the link opens: the least wait must be longer than
    # a few redials and the delays of two busy processes.
    link_closed_delay_min_ms: int = 150
    link_closed_delay_max_ms: int = 250
    # The same once the follower's own dial to the leader is refused too, while its links to enough other voters stayed
    # open: so a killed process looks. The least wait is longer than two redials (0 to 6 ms). A candidate whose votes
    # were split waits as long before it asks again.
    link_refused_delay_min_ms: int = 10
    link_refused_delay_max_ms: int = 35
    # Give up a leadership transfer after this long and take writes again (thesis section 3.10).
    transfer_timeout_ms: int = 1_000
    # Replication: entries and bytes in one AppendEntries, and messages in flight to one follower.
    append_bytes_max: int = 1 << 20
    append_entries_max: int = 4_096
    inflight_messages_max: int = 64
    inflight_bytes_max: int = 16 << 20
    # Entries in one AppendEntries that are committed already: only a follower that is behind waits for them, and it is
    # not to be felt by who writes meanwhile. `raft.progress` says how many of them are under way.
    catch_up_bytes_max: int = 256 << 10
    # Appended but not committed: beyond it proposals are refused as busy (pitfall 29).
    uncommitted_bytes_max: int = 64 << 20
    # The in-memory tail of the log; durable entries beyond it are dropped from memory, and read back where needed.
    tail_bytes_max: int = 32 << 20
    tail_entries_max: int = 16_384
    # Given out to be applied, and not applied yet: beyond it the next entries wait in the tail, or on the disk.
    apply_bytes_max: int = 8 << 20
    # One entry: what the driver may pack together. A request larger than this is refused at the edge.
    entry_bytes_max: int = 8 << 20
    # A learner gets its vote after a round that was shorter than the least election timeout; after so many rounds, or
    # so long a silence, it is given up (thesis 4.2.1; pitfall 47).
    catch_up_rounds_max: int = 10
    catch_up_silence_ms: int = 10_000
    # A snapshot for a follower: bytes in one chunk (DESIGN section 5), and after how long without an answer the chunks
    # under way leave again.
    snapshot_chunk_bytes: int = 256 << 10
    snapshot_retry_ms: int = 1_000
    # Bytes of a snapshot under way to one follower, and waiting for its disk there: 160 MB/s over a line with a round
    # trip of 100 ms. An answer later than the quickest one by more than the queue's time says that chunks wait on the
    # line or for the disk: then fewer are sent, so that what else uses the bulk link does not wait long behind them.
    snapshot_window_bytes: int = 16 << 20
    snapshot_queue_ms: int = 200
    # Linearizable reads waiting for their round.
    reads_pending_max: int = 65_536

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}: it must be a whole number of at least 1")
        if self.election_timeout_max_ms <= self.election_timeout_min_ms:
            raise ValueError(
                f"election_timeout_max_ms ({self.election_timeout_max_ms}) must be above "
                f"election_timeout_min_ms ({self.election_timeout_min_ms}): equal timeouts never break a tie"
            )
        for name in ("link_closed_delay", "link_refused_delay"):
            least, most = getattr(self, f"{name}_min_ms"), getattr(self, f"{name}_max_ms")
            if most < least:
                raise ValueError(f"{name}_max_ms ({most}) must not be below {name}_min_ms ({least})")
        if self.heartbeat_ms * 2 > self.election_timeout_min_ms:
            raise ValueError(
                f"heartbeat_ms ({self.heartbeat_ms}) must be at most half of election_timeout_min_ms "
                f"({self.election_timeout_min_ms}), or one lost heartbeat costs an election"
            )
        if self.entry_bytes_max > self.uncommitted_bytes_max:
            raise ValueError(
                "entry_bytes_max must not exceed uncommitted_bytes_max: such an entry could never be taken"
            )
