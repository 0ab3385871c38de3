"""Runs the replicas of one node as a process: their links and ticks, their metrics, and the exit code.

`raftlog node` and tests make one (`raftlog.cluster.node.process`). An error of one replica ends the whole process.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

from raftlog.cluster.config.cluster_file import ClusterFile, split_address
from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.config.settings import Settings
from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.files.folder import RecoveredFolder
from raftlog.cluster.node.shard_links import ShardLinks
from raftlog.cluster.peers.ports import LinkParts, PeerIdentity
from raftlog.cluster.peers.transport import Transport
from raftlog.cluster.replica import gauges, shutdown
from raftlog.cluster.replica.opening import ReplicaParts
from raftlog.cluster.replica.parts import link_events
from raftlog.cluster.replica.replica import Replica
from raftlog.cluster.replica.state import ReplicaEnd
from raftlog.cluster.replica.status import VERSION
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.logging import Logger
from raftlog.cluster.runtime.metrics import Metrics
from raftlog.cluster.security.tls import Credentials
from raftlog.raft.codec.checks import INDEX_MAX
from raftlog.raft.codec.frame import Frame
from raftlog.raft.hello import Start
from raftlog.raft.messages import Message
from raftlog.raft.types import NodeId

TICK_S: Final = 0.005  # seconds between two ticks while a replica is busy; else each one comes when a replica needs it
# After a tick that comes later, waiting messages go first (pitfall 14: stale timers fire after a stall).
LATE_S: Final = 0.1
SILENCE_S: Final = 0.05  # seconds between two checks for peers that fell silent
_shard_of: Final = attrgetter("shard")
_EXITS: Final = {
    ReplicaEnd.STOPPED: NodeExit.OK,
    ReplicaEnd.REMOVED: NodeExit.REMOVED,
    ReplicaEnd.FENCED: NodeExit.FENCED,
    ReplicaEnd.DIVERGED: NodeExit.DIVERGED,
    ReplicaEnd.DAMAGED: NodeExit.DAMAGED,
    ReplicaEnd.UNKNOWN_VERSION: NodeExit.UNKNOWN_VERSION,
    ReplicaEnd.FAILED: NodeExit.FAILURE,
}


class Host:
    """One node as a process. Made on the event loop; `start`, then `stop`. `ended` gets the exit code.

    It is the `raftlog.cluster.replica.replica.Process` of its replicas and the
    `raftlog.cluster.peers.ports.Receiver` of its links. The public interface is that of `replica`, the replica of
    group 0.
    """

    def __init__(
        self,
        settings: Settings,
        disk: Disk,
        recovered: RecoveredFolder,
        *,
        metrics: Metrics,
        logger: Logger,
        cluster: ClusterFile | None = None,
        further: Sequence[tuple[Disk, RecoveredFolder]] = (),
        making: ReplicaParts | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """Restores the newest snapshots, which blocks. Raises the errors of `snapshot_stream.restore`.

        `disk` and `recovered` are of group 0, `further` of the other Raft groups on this node. `cluster` is the node's
        cluster file; `making` what the replicas are made of (None: the defaults); `credentials` are for links with TLS.
        """
        self.settings = settings
        self.metrics, self.logger = metrics, logger
        self._loop = asyncio.get_running_loop()
        self.call_soon: Final[Callable[[Callable[[], None]], object]] = self._loop.call_soon
        self.ended: asyncio.Future[NodeExit] = self._loop.create_future()
        identity, run = recovered.identity, random.SystemRandom().randrange(1, INDEX_MAX)
        parts = LinkParts(
            PeerIdentity(
                identity.log_id,
                identity.node,
                identity.incarnation,
                recovered.hard_state.boot,
                recovered.start(run),
                (making or ReplicaParts()).knows,
                VERSION,
                disk.size_bytes,
            ),
            self,
            settings.peer,
            settings.limits,
            2 * settings.options().election_timeout_max_ms / 1_000,
            metrics,
            logger,
            credentials,
        )
        self.transport = Transport(parts, settings.dial)
        self.replicas: dict[int, Replica] = {}
        for each, found in ((disk, recovered), *further):
            shard = found.shard
            assert shard not in self.replicas, f"group {shard} twice"
            self.replicas[shard] = Replica(
                settings,
                each,
                found,
                process=self,
                run=run,
                cluster=cluster,
                making=making,
                links=ShardLinks(self.transport, shard) if shard else self.transport,
                logger=logger.bind(shard=shard) if shard else logger,
            )
            gauges.register(self.replicas[shard].state, metrics)
        self.replica: Final = self.replicas[0]
        self._tick_due = 0.0
        self._ticker: asyncio.TimerHandle | None = None
        self._silence_at = 0.0
        metrics.numbers("raftlog_link_up", self.transport.connections)
        metrics.peers = lambda: map(str, self.transport.links_seen())

    # -- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listens for peers, dials them, and begins to tick. Raises OSError when the address is taken."""
        host, port = split_address(self.settings.peer.listen, "peer.listen")
        for replica in self.replicas.values():
            await replica.begin()
        await self.transport.start(host, port)
        self._arm()
        for replica in self.replicas.values():
            replica.start()

    def begin_stop(self) -> None:
        """The replicas refuse new requests and hand leadership over."""
        for replica in self.replicas.values():
            shutdown.begin_stop(replica.state)

    async def stop(self) -> None:
        """Hands leadership over, waits until requests are answered, writes durable marks, and closes everything."""
        self.begin_stop()  # begins in all groups, before it waits for any of them
        timeout_s = self.settings.limits.stop_timeout_ms / 1_000
        replicas, until = self.replicas.values(), clock.monotonic() + timeout_s
        await asyncio.gather(*(shutdown.drain(each.state, until) for each in replicas))
        was_failed = self.ended.done()
        self.replica_ended(self.replica)
        for each in replicas:
            await each.close(timeout_s)
        await self.transport.close()
        for each in sorted(replicas, key=lambda replica: -replica.state.identity.shard):  # group 0, with the lock, last
            await each.close_disk(is_clean=not was_failed)
        self.logger.info("stopped", applied=self.replica.applied)

    # -- for its replicas ---------------------------------------------------------------------------------------------

    def call_later(self, delay_s: float, run: Callable[[], None]) -> None:
        self._loop.call_later(delay_s, run)

    def tick_soon(self) -> None:
        if self._ticker is not None and self._tick_due > clock.monotonic() + TICK_S:
            self._ticker.cancel()
            self._arm()

    def replica_ended(self, replica: Replica) -> None:
        """The process ends with the exit code of the first replica that ended."""
        ending = replica.state.life.ending
        assert ending is not None
        if self._ticker is not None:
            self._ticker.cancel()
        if not self.ended.done():
            self.ended.set_result(_EXITS[ending])

    # -- from the links -----------------------------------------------------------------------------------------------

    def peer_messages(self, peer: NodeId, incarnation: str, messages: Sequence[Message]) -> None:
        """Consensus messages of one chunk. Those of a group that is not on this node are dropped."""
        for shard, group in groupby(messages, _shard_of):
            if (replica := self.replicas.get(shard)) is not None:
                link_events.take_messages(replica.state, [(incarnation, message) for message in group])

    def peer_requests(self, peer: NodeId, incarnation: str, frames: Sequence[Frame]) -> None:
        """Frames of the bulk link.

        Raises Corrupt for a malformed frame. Frames of a group that is not on this node are dropped.
        """
        for shard, group in groupby(frames, _shard_of):
            if (replica := self.replicas.get(shard)) is not None:
                link_events.take_frames(replica.state, peer, incarnation, list(group))

    def peer_link_opened(self, peer: NodeId, incarnation: str, knows: int, start: Start) -> None:
        """A peer connected to this node. Its hello reports what its process found of group 0 alone."""
        for shard, replica in self.replicas.items():
            link_events.link_opened(replica.state, peer, incarnation, knows, start if shard == 0 else None)

    def peer_refused(self, peer: NodeId, incarnation: str, start: Start) -> None:
        """This node refused the hello of a process of that peer. Its start concerns group 0 alone."""
        if (replica := self.replicas.get(0)) is not None:
            link_events.hello_refused(replica.state, peer, incarnation, start)

    def has_removed(self, peer: NodeId, incarnation: str) -> bool:
        return self.replica.state.core.state.has_removed(peer, incarnation)

    def peer_link_closed(self, peer: NodeId) -> None:
        for replica in self.replicas.values():
            link_events.link_closed(replica.state, peer)

    def consensus_link_opened(self, peer: NodeId) -> None:
        for replica in self.replicas.values():
            link_events.link_dialled(replica.state, peer, is_bulk=False)

    def consensus_link_refused(self, peer: NodeId) -> None:
        for replica in self.replicas.values():
            link_events.link_refused(replica.state, peer)

    def bulk_link_opened(self, peer: NodeId) -> None:
        for replica in self.replicas.values():
            link_events.link_dialled(replica.state, peer, is_bulk=True)

    def bulk_link_believed(self, peer: NodeId) -> None:
        for replica in self.replicas.values():
            link_events.bulk_link_believed(replica.state, peer)

    def bulk_link_closed(self, peer: NodeId) -> None:
        for replica in self.replicas.values():
            link_events.bulk_link_closed(replica.state, peer)

    # -- time -------------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """The next tick is one interval from now: a loop that was blocked gets one late tick, not a burst (pitfall 14:
        stale timers fire after a stall)."""
        rests_s = min(replica.may_rest_s() for replica in self.replicas.values())
        self._tick_due = clock.monotonic() + max(TICK_S, rests_s)
        self._ticker = self._loop.call_at(self._tick_due, self._tick)

    def _tick(self) -> None:
        self._ticker = None
        lag = max(0.0, clock.monotonic() - self._tick_due)
        self.metrics.histograms["raftlog_loop_lag_seconds"].observe(lag)
        if lag > LATE_S:
            self._loop.call_later(TICK_S, self._ticked)
        else:
            self._ticked()

    def _ticked(self) -> None:
        if self.ended.done():
            return
        now, mono = clock.read(), clock.monotonic()
        if mono >= self._silence_at:
            self._silence_at = mono + SILENCE_S
            self.transport.check_silence()
        self.metrics.history.look(mono)
        for replica in self.replicas.values():
            replica.tick(now, mono)
        if not self.ended.done():
            self._arm()
