"""Draws the world of one seed: the number of nodes, the quality of network and disks, faults, requests.

Swarm testing (Groce and others, 2012): each seed leaves a random choice of faults out, so that some worlds are full of
crashes and have no loss, and others the reverse: a fault that is in every world hides the others.
Everything is drawn from the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from raftlog.raft.options import Options

MINUTE_US: Final = 60_000_000

GONE: Final = "upgrade"
"""A kind that there is no more. It is drawn and has its share of the faults, so that each seed keeps its world."""

KINDS: Final[dict[str, tuple[int, int]]] = {
    # network: kind -> (in how many worlds of a hundred, how often beside the others)
    "cut link": (45, 4),
    "cut node": (45, 4),
    "cut halves": (45, 3),
    "cut shape": (40, 3),  # ring, bridge, hub, Howard's
    "clog": (40, 3),
    "flap": (25, 2),
    "reset link": (35, 3),
    # processes
    "kill": (60, 6),
    "power cut": (50, 5),
    "kill several": (35, 2),  # a minority or a majority, at once
    "kill all": (25, 1),
    "power cut all": (25, 1),
    "pause": (50, 4),
    "pause several": (25, 2),
    "restart storm": (15, 1),
    # disks
    "slow disk": (35, 3),
    "hanging disk": (25, 2),
    "full disk": (30, 2),
    "fail read": (25, 2),
    "fail write": (20, 1),
    "fail sync": (20, 1),
    "flip bit": (20, 1),
    "misdirect": (15, 1),
    "stale block": (15, 1),
    "wipe": (10, 1),
    "roll back": (10, 1),
    # clocks
    "clock jump": (50, 3),
    "clock drift": (25, 2),
    # operators
    "transfer": (45, 4),
    "add": (25, 2),
    "promote": (25, 2),
    "remove": (25, 2),
    "replace": (20, 1),
    # a cut and writes together
    "strand leader": (50, 3),
    # a state in memory
    "corrupt state": (40, 4),
    GONE: (60, 4),
    # a power cut and damage together
    "flip newest": (35, 3),
    # many connections at once
    "break links": (40, 3),
}
"""Kinds of faults that the nemesis knows. Wearing ones (a damaged disk is lost for its world) are the rarest."""

FORGETTING: Final = (("restore copy", 20), ("lying sync", 25), ("clone", 25), ("refused copy", 20))
FORGETTING_EVERY_US: Final = (2_000_000, 8_000_000, 20_000_000)
"""Promises are forgotten without damage in so many worlds of a hundred, this often. Each kind is drawn after everything
before it, so that a seed draws the world that it drew before there was that kind."""

FORGING: Final = (("removed key", 25), ("forged hello", 25), ("format again", 20))
"""Drawn as FORGETTING is, behind `apply_us`."""

BEHIND: Final = (("strand follower", 80),)
"""The same, in so many worlds of a hundred whose log is trimmed."""


@dataclass(frozen=True, slots=True)
class LinkQuality:
    """What each link between two nodes draws its own share of, from nothing up to these."""

    loss: int  # of a message, 0 to 300
    duplicate: int  # `duplicate` and `replay` together 0 to 500
    replay: int  # an old message comes again
    delay_min_us: int
    delay_max_us: int
    slow_message: int  # a message that takes up to 400 ms more, overtaken by others


@dataclass(frozen=True, slots=True)
class SyncTimes:
    """How long a write with its sync takes."""

    sync_min_us: int
    sync_max_us: int
    slow_sync: int  # a sync that takes up to 900 ms


@dataclass(frozen=True, slots=True)
class FaultTimes:
    """How long the faults of the nemesis last."""

    cut_max_us: int
    cut_is_noticed: int  # whether a cut closes the connection
    disk_max_us: int  # how long a disk stays full, slow or silent


@dataclass(frozen=True, slots=True)
class Swarm:
    """The parameters of one world. Probabilities are in thousandths, times in microseconds."""

    nodes: int
    network: LinkQuality
    sync: SyncTimes
    segment_bytes: int
    # processes
    crash_at_step: int  # per step of carrying out a Ready, in 100,000ths
    step_power_cut: int  # how many of those crashes are power cuts
    down_max_us: int
    pause_max_us: int
    drift: int  # clocks run wrong by up to this many thousandths
    # what the nemesis does: (kind, mean time between two of it)
    faults: tuple[tuple[str, int], ...]
    fault_times: FaultTimes
    # load
    clients: int
    client_every_us: int  # mean time from one operation of a client to its next
    compact_every_us: int  # a snapshot by some node; 0 is never
    tail_kept: int  # entries in memory after a restart
    encode: bool  # messages travel as frames, and are decoded at the other end
    options: Options
    trim_every_us: int  # mean time between trims; 0: the log is never trimmed
    apply_us: int = 0  # how long the state machines of some nodes take for an entry; 0: no time
    save_us: int = 0  # how long a step of some saves takes at most: a small snapshot has four; 0: no time


def draw(random: Random) -> Swarm:
    """The world of a seed."""

    def sometimes(percent: int, low: int, high: int) -> int:
        return random.randint(low, high) if random.randrange(100) < percent else 0

    delay_min = random.choice((50, 100, 500))
    sync_min = random.choice((80, 200, 1_000))
    nodes = random.choice((1, 2, 3, 3, 3, 3, 3, 3, 4, 5, 5, 5, 5, 6, 7))
    clients = random.choice((2, 3, 4, 6))
    a_minute = random.choice((300, 400, 400, 400, 600))  # operations of all clients
    swarm = Swarm(
        nodes=nodes,
        network=LinkQuality(
            loss=sometimes(50, 1, 100) if random.randrange(4) else random.randint(100, 300),
            duplicate=sometimes(40, 1, 250),
            replay=sometimes(40, 1, 250),
            delay_min_us=delay_min,
            delay_max_us=delay_min * random.choice((2, 10, 50)),
            slow_message=sometimes(40, 1, 50),
        ),
        sync=SyncTimes(sync_min, sync_min * random.choice((2, 10)), sometimes(40, 1, 30)),
        segment_bytes=random.choice((4_096, 4_096, 16_384, 65_536)),
        crash_at_step=sometimes(50, 2, 40),
        step_power_cut=random.choice((0, 500, 1_000)),
        down_max_us=random.choice((50_000, 1_000_000, 3_000_000, 8_000_000)),
        pause_max_us=random.choice((200_000, 1_000_000, 4_000_000)),
        drift=random.choice((0, 0, 20, 100)),
        faults=_faults(random, nodes),
        fault_times=FaultTimes(
            cut_max_us=random.choice((300_000, 2_000_000, 6_000_000)),
            cut_is_noticed=random.choice((0, 300, 1_000)),
            disk_max_us=random.choice((300_000, 2_000_000, 5_000_000)),
        ),
        clients=clients,
        client_every_us=clients * MINUTE_US // a_minute,
        compact_every_us=random.choice((0, 150_000, 400_000, 400_000, 2_000_000, 2_000_000, 8_000_000)),
        tail_kept=random.choice((0, 1, 5, 1_000)),
        encode=random.randrange(4) == 0,
        options=_options(random),
        trim_every_us=random.choice((0, 100_000, 300_000, 300_000, 2_000_000)),
    )
    forgetting = _late(random, nodes, FORGETTING)
    apply_us = random.choice((0, 0, 0, 2_000, 20_000, 200_000))
    forging, behind = _late(random, nodes, FORGING), _late(random, nodes, BEHIND)
    faults = (*swarm.faults, *forgetting, *forging, *(behind if swarm.trim_every_us else ()))
    save_us = random.choice((0, 50_000, 500_000, 2_000_000, 2_000_000))
    return replace(swarm, faults=faults, apply_us=apply_us, save_us=save_us)


def _late(random: Random, nodes: int, kinds: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Which of those kinds a world of at least three nodes has, and how often each."""
    found: list[tuple[str, int]] = []
    for kind, percent in kinds:
        has_kind, every_us = random.randrange(100) < percent, random.choice(FORGETTING_EVERY_US)
        if nodes >= 3 and has_kind:
            found.append((kind, every_us))
    return found


def _faults(random: Random, nodes: int) -> tuple[tuple[str, int], ...]:
    """Which kinds this world has, and how often each: together some number of faults a minute."""
    a_minute = random.choice((15, 20, 30, 45, 45, 60, 90))
    alone = {
        *("cut link", "cut node", "cut halves", "cut shape", "clog", "flap", "reset link", "transfer"),
        *("strand leader", "break links"),
    }
    weights: list[tuple[str, int]] = []
    for kind, (percent, weight) in KINDS.items():
        # drawn whether or not it counts, so that a kind switched on or off leaves the others as they are
        is_drawn, factor = random.randrange(100) < percent, random.randint(1, 4)
        if is_drawn and not (nodes == 1 and kind in alone):
            weights.append((kind, weight * factor))
    total = sum(weight for _, weight in weights)
    return tuple((kind, MINUTE_US * total // (a_minute * weight)) for kind, weight in weights if kind != GONE)


def _options(random: Random) -> Options:
    """Mostly small windows and tails: limits that are never reached prove nothing."""
    is_small = random.randrange(100) < 60
    heartbeat_ms = random.choice((60, 100, 100, 150, 200))  # most of a world's work is heartbeats
    options = Options(
        heartbeat_ms=heartbeat_ms,
        election_timeout_min_ms=5 * heartbeat_ms,
        election_timeout_max_ms=10 * heartbeat_ms,
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
        snapshot_chunk_bytes=random.choice((200, 1_000, 256 << 10)),
        snapshot_retry_ms=random.choice((200, 1_000)),
        snapshot_window_bytes=random.choice((1, 1_000, 3_000, 16 << 20)),
        snapshot_queue_ms=random.choice((1, 20, 200)),
    )
    return replace(options, apply_bytes_max=options.inflight_bytes_max)  # not drawn: the other draws stay as they were


def quiet(nodes: int = 3) -> Swarm:
    """A world without trouble: what a healthy cluster does."""
    return replace(
        draw(Random(0)),
        nodes=nodes,
        network=LinkQuality(loss=0, duplicate=0, replay=0, delay_min_us=100, delay_max_us=200, slow_message=0),
        sync=SyncTimes(sync_min_us=200, sync_max_us=400, slow_sync=0),
        crash_at_step=0,
        faults=(),
        compact_every_us=0,
        trim_every_us=0,
        drift=0,
        encode=False,
        apply_us=0,
        save_us=0,
    )
