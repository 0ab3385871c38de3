"""What one seed's world is like: how many nodes, how bad the network, the disks and the processes are.

Swarm testing: each seed turns a random choice of faults on, so that some worlds are full of crashes and have no loss,
and others the reverse. Everything is drawn from the seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from raft.options import Options


@dataclass(frozen=True, slots=True)
class Swarm:
    """The parameters of one world. Probabilities are in thousandths, times in microseconds."""

    nodes: int
    loss: int  # of a message
    duplicate: int
    delay_min_us: int
    delay_max_us: int
    slow_message: int  # a message that takes up to 400 ms, overtaken by others
    sync_min_us: int
    sync_max_us: int
    slow_sync: int  # a sync that takes up to 900 ms
    crash_at_step: int  # per step of carrying out a Ready, in 100,000ths
    crash_every_us: int  # mean; 0 is never
    down_max_us: int
    pause_every_us: int
    pause_max_us: int
    cut_every_us: int
    cut_max_us: int
    cut_is_noticed: int  # whether a cut closes the connection
    link_reset_every_us: int
    transfer_every_us: int
    compact_every_us: int
    clock_jump_every_us: int  # of the wall clock
    drift: int  # clocks run wrong by up to this many thousandths
    write_every_us: int
    read_every_us: int
    tail_kept: int  # entries in memory after a restart
    options: Options


def draw(random: Random) -> Swarm:
    """The world of a seed."""

    def sometimes(percent: int, low: int, high: int) -> int:
        return random.randint(low, high) if random.randrange(100) < percent else 0

    delay_min = random.choice((50, 100, 500))
    sync_min = random.choice((80, 200, 1_000))
    is_small = random.randrange(100) < 60
    options = Options(
        append_bytes_max=random.choice((200, 600, 4_000)) if is_small else 1 << 20,
        append_entries_max=random.choice((1, 3, 16)) if is_small else 4_096,
        inflight_messages_max=random.choice((1, 2, 8)) if is_small else 64,
        inflight_bytes_max=random.choice((300, 2_000)) if is_small else 16 << 20,
        tail_entries_max=random.choice((4, 16, 64)) if is_small else 16_384,
        tail_bytes_max=random.choice((1_000, 8_000)) if is_small else 32 << 20,
        uncommitted_bytes_max=random.choice((4_000, 1 << 20)),
        entry_bytes_max=2_000,
        reads_pending_max=random.choice((4, 64)),
        transfer_timeout_ms=random.choice((200, 1_000)),
    )
    return Swarm(
        nodes=random.choice((1, 2, 3, 3, 3, 3, 3, 4, 5, 5, 5)),
        loss=sometimes(50, 1, 150),
        duplicate=sometimes(40, 1, 100),
        delay_min_us=delay_min,
        delay_max_us=delay_min * random.choice((2, 10, 50)),
        slow_message=sometimes(40, 1, 50),
        sync_min_us=sync_min,
        sync_max_us=sync_min * random.choice((2, 10)),
        slow_sync=sometimes(40, 1, 30),
        crash_at_step=sometimes(60, 2, 60),
        crash_every_us=sometimes(50, 500_000, 5_000_000),
        down_max_us=random.choice((50_000, 1_000_000, 3_000_000)),
        pause_every_us=sometimes(40, 800_000, 5_000_000),
        pause_max_us=random.choice((100_000, 700_000, 3_000_000)),
        cut_every_us=sometimes(60, 500_000, 4_000_000),
        cut_max_us=random.choice((300_000, 2_000_000, 5_000_000)),
        cut_is_noticed=random.choice((0, 300, 1_000)),
        link_reset_every_us=sometimes(40, 300_000, 3_000_000),
        transfer_every_us=sometimes(40, 500_000, 4_000_000),
        compact_every_us=sometimes(50, 300_000, 2_000_000),
        clock_jump_every_us=sometimes(30, 500_000, 3_000_000),
        drift=random.choice((0, 0, 20, 100)),
        write_every_us=random.choice((5_000, 20_000, 50_000)),
        read_every_us=random.choice((10_000, 30_000, 100_000)),
        tail_kept=random.choice((0, 1, 5, 1_000)),
        options=options,
    )
