"""Mistakes about digest points."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Mutant

MUTANTS: Final = (
    Mutant(
        name="leader_is_always_right",
        number=29,
        title="replicas take over the leader's digest when it is the leader that is damaged",
        source="NATS #7556",
        target="raftlog.cluster.protocol.digest_points:DigestPoints.judge",
        old="right = right_value(configuration, values)",
        new="right = values.get(leader)",
    ),
)
