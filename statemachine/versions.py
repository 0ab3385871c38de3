"""Says what each cluster version permits, so that all nodes do the same at the same index.

Apply and snapshots call it. The version is a field of the configuration entry, part of the state, and equal on every
node at every index. It is raised only when every member runs code that knows it. Each difference of apply or a snapshot
from some version on gets a constant here. The old behaviour stays for logs that were written under it (pitfall 77:
apply that differs between nodes). tests/acceptance/next_version.py shows how the next version is made.
"""

from __future__ import annotations

from typing import Final

CLUSTER_VERSION: Final = 1
"""The newest that this code knows; a newly formatted cluster begins with it."""


class UnknownClusterVersion(ValueError):
    """The cluster is at a version that this code does not know: upgrade before going on."""


def check(version: int, index: int) -> int:
    """That version. Raises UnknownClusterVersion."""
    if version > CLUSTER_VERSION:
        raise UnknownClusterVersion(
            f"at entry {index} the cluster is at version {version}, this code knows up to {CLUSTER_VERSION}: upgrade it"
        )
    return version
