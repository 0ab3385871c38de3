"""Says what each cluster version permits, so that all nodes do the same at the same index.

Apply and snapshots call it. The version is a field of the configuration entry, part of the state, and equal on every
node at every index. It is raised only when every member runs code that knows it. Each difference of apply or a snapshot
from some version on has a line here. The old behaviour stays for logs that were written under it (pitfall 77: apply
that differs between nodes).
"""

from __future__ import annotations

from typing import Final

CLUSTER_VERSION: Final = 4
"""The newest that this code knows; a newly formatted cluster begins with it. From version 4 on a configuration also
names removed disks (`raftlog.raft.configuration`)."""

POINTS_COVER_LIMITS: Final = 2
"""From this version on the value of a digest point is also of the version and the limits of the state machine, which
decide what apply does: replicas that differ in them are found before their states do."""

SNAPSHOTS_NAME_VERSION: Final = 2
"""From this version on a snapshot names it. Those of version 1 are written as ever: every member can read them."""


ACCESS_CONTROL: Final = 3
"""From this version on the first admin may be made. Only then do blocks carry admissions, do snapshots have version 4,
and do sessions have owners: until then all bytes are as before."""

SHARES: Final = 4
"""From this version on a consumer group has the principal that made it, and what stays of one principal has a share."""

ROLE_CHANGES: Final = 4
"""From this version on single grants are added to a role, or taken from it: GRANT_ROLE and UNGRANT_ROLE."""


class UnknownClusterVersion(ValueError):
    """The cluster is at a version that this code does not know: upgrade before going on."""


def check(version: int, index: int) -> int:
    """That version. Raises UnknownClusterVersion."""
    if version > CLUSTER_VERSION:
        raise UnknownClusterVersion(
            f"at entry {index} the cluster is at version {version}, this code knows up to {CLUSTER_VERSION}: upgrade it"
        )
    return version
