"""Mistakes about digest points."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Edit, Mutant

MUTANTS: Final = (
    Mutant(
        name="leader_is_always_right",
        number=29,
        title="replicas take over the leader's digest when it is the leader that is damaged",
        source="NATS #7556",
        edits=(
            Edit(
                "raftlog.cluster.protocol.digest_points:DigestPoints.judge",
                "right = right_value(configuration, values)",
                "right = values.get(leader)",
            ),
        ),
    ),
)
