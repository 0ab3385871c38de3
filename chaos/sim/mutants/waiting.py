"""Mutants whose feature is not there yet: listed, so that nobody forgets them."""

from __future__ import annotations

from typing import Final

from chaos.sim.mutants.mutant import Mutant

_MEMBERS: Final = "membership changes"
_SNAPSHOTS: Final = "snapshots over the wire"

MUTANTS: Final = (
    Mutant(
        name="probing_for_ever_after_a_snapshot",
        number=13,
        title="a follower that took a snapshot is never streamed to again",
        source="etcd #10308",
        waits_for=_SNAPSHOTS,
    ),
    Mutant(
        name="second_snapshot_panics",
        number=15,
        title="two snapshots in quick succession break the follower",
        source="etcd #18055",
        waits_for=_SNAPSHOTS,
    ),
    Mutant(
        name="snapshot_drops_a_valid_suffix",
        number=21,
        pitfall=53,
        title="a snapshot that is a prefix of the log takes what follows away, or an older one is accepted",
        source="thesis 5.1; etcd-io/raft #110",
        waits_for=_SNAPSHOTS,
    ),
    Mutant(
        name="change_in_force_when_committed",
        number=25,
        pitfall=50,
        title="a configuration is in force at the leader from its append on, at followers from its commit on",
        source="etcd #2397, #7625",
        waits_for=_MEMBERS,
    ),
    Mutant(
        name="leader_is_always_right",
        number=29,
        title="replicas take over the leader's digest when it is the leader that is damaged",
        source="NATS #7556",
        waits_for="digest points in the log",
    ),
    Mutant(
        name="trimmed_locally",
        number=31,
        title="the oldest index differs per node, and a consumer skips records",
        source="a classic of retention",
        waits_for="trimming by retention",
    ),
)
