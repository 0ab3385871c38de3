"""Defines the tunables of the consensus core, in milliseconds, counts and bytes, validated once.

Every limit has its name here; defaults are for a local network: heartbeat 60 ms, elections drawn from
300 to 600 ms.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a core. Raises ValueError naming the field, its value and the bound it breaks."""

    heartbeat_ms: int = 60
    election_timeout_min_ms: int = 300
    election_timeout_max_ms: int = 600
    # After the leader's link closed, a follower waits a random time in this range for the leader's next heartbeat. A
    # live leader dials again at once and sends one as soon as the link opens. So the least wait must be longer than a
    # few redials and the delays of two busy processes. If two heartbeats take longer than the least wait, both ends of
    # the range move up by the difference.
    link_closed_delay_min_ms: int = 150
    link_closed_delay_max_ms: int = 250
    # The same once the follower's own dial to the leader is refused too, while its links to enough other voters stayed
    # open: a killed process looks so. The least wait is longer than one redial (1 to 2 ms). The spread is short,
    # because equal followers that ask at the same time do not split the votes (`raftlog.raft.consensus.election`). A
    # candidate with split votes waits as long before it asks again.
    link_refused_delay_min_ms: int = 5
    link_refused_delay_max_ms: int = 25
    # Give up a leadership transfer after this long and take writes again (thesis section 3.10).
    transfer_timeout_ms: int = 1_000
    # Replication: entries and bytes in one AppendEntries, and messages in flight to one follower.
    append_bytes_max: int = 1 << 20
    append_entries_max: int = 4_096
    inflight_messages_max: int = 64
    inflight_bytes_max: int = 16 << 20
    # Bytes of committed entries in one AppendEntries. Only a follower that is behind waits for them, and it must not
    # slow down other writers. `raftlog.raft.consensus.progress` decides how many such messages are under way.
    catch_up_bytes_max: int = 256 << 10
    # Appended but not committed: beyond it proposals are refused as busy (pitfall 29: endless growth of an isolated
    # leader's log).
    uncommitted_bytes_max: int = 64 << 20
    # The in-memory tail of the log; durable entries beyond it are dropped from memory, and read back where needed.
    tail_bytes_max: int = 32 << 20
    tail_entries_max: int = 16_384
    # Given out to be applied, and not applied yet: beyond it the next entries wait in the tail, or on the disk.
    apply_bytes_max: int = 8 << 20
    # One entry: what the driver may pack together. A request larger than this is refused at the edge.
    entry_bytes_max: int = 8 << 20
    # A learner gets its vote after a round that was shorter than the least election timeout. After this many rounds, or
    # this long a silence, the leader gives it up (thesis 4.2.1; pitfall 47: a slow new server that stalls commits).
    catch_up_rounds_max: int = 10
    catch_up_silence_ms: int = 10_000
    # A snapshot for a follower: bytes in one chunk, and after how long without an answer the chunks
    # under way leave again.
    snapshot_chunk_bytes: int = 256 << 10
    snapshot_retry_ms: int = 1_000
    # Bytes of a snapshot under way to one follower, and waiting for its disk there: 160 MB/s over a line with a round
    # trip of 100 ms. An answer that is later than the quickest one by more than the queue's time means that chunks
    # wait, on the line or for the disk. Then the leader sends fewer, so that other messages of the bulk link do not
    # wait long behind them.
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
