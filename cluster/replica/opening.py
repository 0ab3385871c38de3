"""Makes the state of a replica from what its disk holds: the core, the state machine, and empty parts.

`raftlog.cluster.replica.replica.Replica` calls it once, at its start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from raftlog.cluster.config.cluster_file import ClusterFile
from raftlog.cluster.config.settings import Settings
from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.disk.syncer import Syncer
from raftlog.cluster.files.folder import RecoveredFolder
from raftlog.cluster.protocol.digest_points import DigestPoints
from raftlog.cluster.protocol.proposals import Pending
from raftlog.cluster.protocol.step_times import StepTimes
from raftlog.cluster.protocol.waiters import Reads
from raftlog.cluster.records.snapshot_stream import restore
from raftlog.cluster.replica.log.applier import Applier
from raftlog.cluster.replica.log.log_reader import LogReader
from raftlog.cluster.replica.log.peer_log import PeerLog
from raftlog.cluster.replica.parts.disk_exchange import rules
from raftlog.cluster.replica.ports import Driver, Links
from raftlog.cluster.replica.state import (
    DiskSpace,
    DiskView,
    Lifecycle,
    Membership,
    PointWatch,
    ReadIndexes,
    ReplicaIdentity,
    ReplicaState,
    Retention,
    Snapshots,
    Writes,
)
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.logging import Logger
from raftlog.cluster.runtime.metrics import Metrics
from raftlog.raft.consensus.core import CoreStart, RaftCore
from raftlog.raft.types import GENESIS, LogStart
from raftlog.raft.wal.retention import RetentionPolicy
from raftlog.statemachine.machine import StateMachine
from raftlog.statemachine.versions import CLUSTER_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaParts:
    """What a replica is made of. The server takes the defaults; the simulator gives parts that it watches."""

    core: type[RaftCore] = RaftCore
    applier: type[Applier] = Applier
    machine: type[StateMachine] = StateMachine
    knows: int = CLUSTER_VERSION  # the newest cluster version that this program knows
    random: Random = field(default_factory=Random)


def open_state(
    settings: Settings,
    disk: Disk,
    recovered: RecoveredFolder,
    *,
    driver: Driver,
    links: Links,
    run: int,
    metrics: Metrics,
    logger: Logger,
    cluster: ClusterFile | None,
    making: ReplicaParts,
) -> ReplicaState:
    """Restores the newest snapshot, which blocks. Raises the errors of `snapshot_stream.restore`.

    `run` names this process in its hellos. Hellos report only what the replica of group 0 found on its disk.
    `cluster` is the node's cluster file.
    """
    identity, boot, limits = recovered.identity, recovered.hard_state.boot, settings.limits
    options, snapshot = settings.options(), recovered.snapshot
    machine, last_user = restore(snapshot.chunks(), making.machine) if snapshot else (making.machine(), 0)
    mark = snapshot.mark if snapshot else GENESIS
    core = making.core(
        identity.node,
        options,
        CoreStart(
            hard_state=recovered.hard_state,
            log=LogStart(recovered.first, recovered.runs, recovered.last, recovered.tail, mark, recovered.base),
            configuration=recovered.configuration,
            configuration_index=recovered.configuration_index,
            earlier=recovered.earlier,
            commit=recovered.committed,
            applied=mark.index,
            incarnation=identity.incarnation,
            floor=recovered.floor,
            kept=recovered.kept,
        ),
        random=making.random.randint,
        now=clock.read(),
        knows=making.knows,
        run=run if recovered.shard == 0 else 0,
        shard=recovered.shard,
    )
    pending = Pending(limits, metrics, identity.node, boot)
    pending.skipped(mark.index, mark.term)
    applier = making.applier(
        machine,
        disk,
        pending,
        limits=limits,
        applied=mark,
        last_user=last_user,
        ledger_last=recovered.ledger_last,
        failed=driver.fail,
        wake=driver.wake,
    )
    peer_log = PeerLog(identity.node, boot, core=core, links=links, disk=disk, applier=applier)
    retention = settings.retention
    return ReplicaState(
        identity=ReplicaIdentity(identity.node, identity.log_id, identity.incarnation, boot, recovered.shard),
        settings=settings,
        options=options,
        driver=driver,
        core=core,
        disk=disk,
        links=links,
        syncer=Syncer(disk, settings.disk, synced=driver.synced, failed=driver.fail, metrics=metrics, logger=logger),
        applier=applier,
        reader=LogReader(identity.node, disk, applier, driver.read_damaged, peer_log),
        peer_log=peer_log,
        metrics=metrics,
        logger=logger,
        random=making.random,
        life=Lifecycle(start_index=recovered.last.index),
        writes=Writes(pending, steps=StepTimes() if settings.trace.endpoint else None),
        reads=ReadIndexes(Reads(boot)),
        members=Membership(cluster),
        watch=PointWatch(DigestPoints(identity.node)),
        snapshots=Snapshots(mark.index),
        retention=Retention(RetentionPolicy(retention.bytes, retention.age_ms, retention.held_bytes)),
        disk_space=DiskSpace(mark.index, (machine.oldest, machine.compacted_revision)),
        disks=DiskView(rules(limits)),
    )
