"""Defines the answers to simulated clients, and the settings of a simulated node."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from raftlog.chaos.sim.ground.stage import Stage
from raftlog.cluster.api.errors import Problem
from raftlog.cluster.config.settings import LimitSettings, RaftSettings, RetentionSettings, Settings
from raftlog.cluster.protocol.request import RequestResult
from raftlog.raft.types import NodeId

NEVER_BYTES: Final = 1 << 40
"""So much log never comes in a world."""

AGE_MS: Final = 25_000
"""Records older than that go in some worlds, in milliseconds: more than twice what a right clock may differ."""


def url_of(node: NodeId) -> str:
    """The URL that a node advertises."""
    return f"http://node-{node}:7000"


Answer = RequestResult | Problem
"""The answer to a write: what came of it once this node had applied it, or why it did not."""


def settings_of(world: Stage, point_entries: int) -> Settings:
    """The settings of every node of a world: limits small enough to be reached now and then."""
    random, segment_bytes = world.random_of("settings"), world.swarm.segment_bytes
    snapshot_bytes = random.choice((segment_bytes, 4 * segment_bytes, NEVER_BYTES))
    trailing_bytes = random.choice((0, 500, segment_bytes, NEVER_BYTES))
    trailing_percent = random.choice((0, 100))
    limits = LimitSettings(
        inbox_requests_max=64,
        inbox_bytes_max=64 << 10,
        inflight_requests_max=256,
        batch_bytes_max=1_900,  # below `Options.entry_bytes_max` of the swarm
        batch_records_max=64,
        batch_eager_bytes=1_000,
        waiters_max=256,
        recent_bytes_max=random.choice((400, 4_000, 32 << 10)),
        ledger_queue_bytes_max=random.choice((1_000, 64 << 10)),
        digest_point_entries=point_entries,
        snapshot_log_bytes=snapshot_bytes if world.swarm.compact_every_us else NEVER_BYTES,
        snapshot_log_percent=100,
        trailing_log_bytes=trailing_bytes if world.swarm.compact_every_us else 0,
        trailing_log_percent=trailing_percent if world.swarm.compact_every_us else 0,
    )
    kept, keeps_all = random.choice((3, 6, 12)), random.randrange(2) == 0 or not world.swarm.trim_every_us
    retention = RetentionSettings() if keeps_all else RetentionSettings(bytes=kept * segment_bytes)
    if world.swarm.trim_every_us and world.random_of("age").randrange(3) == 0:
        retention = RetentionSettings(age_ms=AGE_MS)
    return Settings(node=0, limits=limits, retention=retention, raft=RaftSettings(**asdict(world.swarm.options)))
