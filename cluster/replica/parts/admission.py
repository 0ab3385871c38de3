"""Decides whether a replica takes a request now, and gives the reason if it does not.

Called for each request of a client, and for each request that a peer forwarded.
"""

from __future__ import annotations

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.replica.parts import digest_exchange, disk_exchange
from raftlog.cluster.replica.state import ReplicaState
from raftlog.cluster.replica.upkeep.disk_space import frees_disk_space


def unavailable(replica: ReplicaState) -> ApiError:
    """The reason why this replica takes no request now."""
    name, life = replica.name, replica.life
    if life.is_fenced:
        return ApiError(Code.FENCED, f"{name} met a disk error, or its state is wrong, and serves no more; ask another")
    if life.is_stopping:
        return ApiError(Code.SHUTTING_DOWN, f"{name} is shutting down; ask another node")
    if replica.members.is_removed:
        return ApiError(Code.NO_LEADER, f"{name} is no member of the cluster any more; ask another node")
    return disk_exchange.refusal(replica)


def check_write(replica: ReplicaState, block: bytes) -> None:
    """Raises ApiError if the replica does not take this request now."""
    life = replica.life
    if life.is_stopping or life.is_fenced or replica.members.is_removed or not has_room(replica, block):
        raise unavailable(replica)
    digest_exchange.check(replica)


def check_read(replica: ReplicaState) -> None:
    """Raises ApiError if the replica does not take a linearizable read now."""
    life = replica.life
    if life.is_stopping or life.is_fenced or replica.members.is_removed:
        raise unavailable(replica)
    digest_exchange.check(replica)
    check_waiters(replica)


def check_serving(replica: ReplicaState) -> None:
    """Raises ApiError if the replica is stopping or fenced."""
    if replica.life.is_stopping or replica.life.is_fenced:
        raise unavailable(replica)


def has_room(replica: ReplicaState, block: bytes) -> bool:
    """Whether the disks have space for this request. A request that frees disk space is always allowed."""
    return (replica.syncer.has_space and replica.disks.takes_writes) or frees_disk_space(block)


def check_waiters(replica: ReplicaState) -> None:
    """Raises ApiError busy if `limits.waiters_max` readers wait already: for a read round or for an index."""
    maximum = replica.settings.limits.waiters_max
    if len(replica.reads.rounds) + len(replica.applier.waiters) >= maximum:
        message = f"{replica.name}: {maximum} readers wait already (limits.waiters_max)"
        raise ApiError(Code.BUSY, message)
