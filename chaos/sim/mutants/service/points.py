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
    Mutant(
        name="points_within_a_slice_skipped",
        number=29,
        title="of the digest points that are applied at once only the newest is compared",
        source="raftlog until issue 19: seed 8203475",
        story="tests/cluster/replica/log/test_applier.py::test_a_slice_ends_with_a_digest_point",
        target="raftlog.cluster.replica.log.applier:Applier.run",
        old=" or self.machine.point is not point",
        new="",
    ),
)
