"""The states that many worlds together must reach at times, each with a sentence, and the detectors that notice them.

Antithesis' "sometimes" assertions, FoundationDB's TEST macro: a property proves nothing about a state that no world
reaches. A detector looks only when something rare happened (an event of a core, a start, a crash), never per message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from raftlog.chaos.sim.network.cluster import Cluster
from raftlog.chaos.sim.replica.life import Life
from raftlog.raft.consensus.roles import Leader
from raftlog.raft.events import BecameFollower, BecameLeader, ConflictTruncated, Event, MessageIgnored, TransferEnded
from raftlog.raft.quorum import agreed, majority
from raftlog.raft.ready import Ready
from raftlog.raft.types import NOBODY, Entry, EntryKind, HardState, NodeId
from raftlog.raft.wal.repair import LOG_IS_ASIDE, SNAPSHOT_IS_ASIDE
from raftlog.statemachine.commands import RequestBlock, Result
from raftlog.statemachine.effects import Effects

SOMETIMES: Final[dict[str, str]] = {
    # elections
    "split vote": "a candidate's term ended without a leader, and it began another",
    "pre-vote prevented a disruption": "a node asked whether it could win, heard from the leader, and raised no term",
    "sticky vote": "a node that hears its leader did not follow a candidate into a newer term",
    "closed link began an election": "a follower heard its link to the leader close, and asked for votes early",
    "a leader outlived a break of its links": "connections ended together, could be made again, and no node campaigned",
    "check-quorum step-down": "a leader that no majority answers stepped down by itself",
    "deposed by a newer term": "a leader heard of a newer term",
    "two leaders": "a leader was elected while one of an older term still took itself for the leader",
    "bare majority": "a leader was elected while no node more than a majority was running",
    "transfer done": "a hand-over ended in the target's term",
    "transfer given up": "a hand-over was not done in time, or its target was lost",
    "leader crashed while handing over": "a leader died between the beginning and the end of a transfer",
    # the log
    "conflict cut": "a follower's entries were replaced by the leader's",
    "conflict cut over several segments": "a conflict reached over the border of two segment files",
    "entry on a majority was cut": "an entry that a majority held durably, uncommitted, was replaced: figure 8",
    "old term waits for the no-op": "a majority held an entry of an older term, which no leader may count",
    "follower probed again": "a lost message sent a follower back to probing",
    "fed from disk": "a follower was so far behind the tail that its entries came from the leader's disk",
    "applied from disk": "committed entries below the tail were read back for the state machine",
    "entries left memory before they were applied": "a process trimmed durable entries, and read them back",
    "follower needs a snapshot": "what a follower lacks is older than the leader's log",
    "trimmed segments deleted": "a node deleted segments that a trim in the log had let go of",
    # crashes and restarts
    "crash before the vote was durable": "a node died with a new term or vote in memory only",
    "crash between persist and send": "a node died with a durable term or vote that it had not sent: the vote is lost",
    "crash between sync and promise": "a node died with durable entries that it had not acknowledged",
    "crash while applying": "a node died between commit and apply",
    "restart from a snapshot": "a node restored its state machine from a snapshot and replayed what followed",
    "restart behind the commit": "a node restarted with fewer entries than are committed",
    "torn tail cut at restart": "a power cut left half an entry, and recovery cut it",
    "interrupted cut finished at restart": "a crash fell into the cut of a conflict, and recovery finished it",
    "all nodes down": "not one process was running",
    "majority down": "too few processes ran to elect anybody",
    # disks
    "a node stops loudly": "a node refused its damaged disk, and said why",
    "a damaged log was cut": "a start set the damaged files aside, and went on under a floor, without a vote",
    "a damaged log has healed": "a node without a vote got from a new leader what it had lost, and votes again",
    "a restored copy has everything again": "a disk was put back as it was, and got back what it had lost",
    "a disk that lied about a sync has everything again": "a power cut took what it had answered for",
    "a copy that ran beside its original has everything again": "two processes of one node, reached in turns",
    "a refused copy has everything again": "its leader refused it and reported what it lost, and a later one took it",
    "a damaged snapshot was set aside": "a start found a snapshot that fails its check, and did without it",
    "scrubbing found damage before a reader": "a sealed segment was damaged, and no reader had met it",
    "scrubbing found a damaged snapshot": "the newest one, and the node saved its state again",
    "a node ended for damage, the others being well": "its next start cuts the damage, and heals from them",
    "damage stays: no voter could heal it": "one voter or two: the node goes on without what it cannot read",
    "damage stays: a repair would cost history": "a start would begin the log again behind a snapshot",
    "a wrong state was found out": "a node whose state differed from the majority's at a digest point fenced itself",
    "a leader's wrong state was found out": "the same of the leader",
    "a wrong state cannot be rebuilt": "its log did not reach back, and the node refused to start",
    "a wrong state outlived the trouble": "it was found out after everything else was healed",
    "nothing is written because no majority has one state": "a majority had reported, and its values differed",
    "a node fences itself": "a write or sync failed, and the process stopped before another word",
    "a full leader hands over": "its disk was full, and a voter with room led on",
    "a leader with a slow disk hands over": "its syncs took much longer than those of a majority, for seconds",
    "a leader with a wrong clock hands over": "it was hours off, and a voter whose clock was right led on",
    "a full follower is sent no entries": "its disk was full, and a majority could do without it",
    "no majority has room": "a leader with room refused writes that only a full follower's reserve could commit",
    "a majority with room went on": "at the end a minority of the disks, the leader's often among them, was full",
    "full disks were trimmed, and writes went on": "at the end all disks were full, and a trim freed space on them",
    "a slow disk did not keep the leadership": "at the end the leader's disk was slow, and another one led on",
    "a wrong clock did not keep the leadership": "at the end the leader's clock jumped by hours",
    "a full disk waits for room": "a disk had no room: nothing was written, and the batch was kept for later",
    "a crash between applied and written": "a node died whose ledger lacked effects that its clients may have seen",
    "a trim passed a stopped follower": "a node deleted segments whose entries a member that is down still lacks",
    "effects were applied and not yet written": "clients may see what the ledger still lacks",
    "a save was overtaken by an install": "a leader's snapshot came while an older state was being saved",
    "records were trimmed by their age": "in a world whose programs report their clocks",
    "no room for a snapshot": "a snapshot was given up for want of room, and left nothing behind",
    # clients
    "read during a change of leader": "a linearizable read lost its leader before its round was confirmed",
    "write with unknown outcome": "a client got the outcome unknown for its write",
    "forwarded write": "a follower passed a client's write to the leader",
    "refused as busy": "too many bytes waited for their commit, and a write was refused at once",
    "repeated request": "a request came twice, and the session recognised the second",
    "session retried at another leader": "a request was taken under one leader, and again under another",
    "fenced owner refused": "a consumer group's owner moved it after somebody else had claimed it, and was refused",
    "a sink's runner was fenced": "a younger one had claimed the group or opened the store, and the older one stopped",
    "clock entry": "an idle log got an entry so that the cluster clock went on",
    # the network
    "replayed message": "a message came again, long after",
    "damaged frame refused": "bytes were damaged on a link, and their CRC showed it",
    "hello refused": "a process of an older boot, or another disk, was not believed",
    # members
    "joint configuration": "two majorities were needed at once",
    "learner promoted": "a node that had caught up became a voter",
    "leader removed itself": "a leader committed the configuration that it is not in, and left",
    "configuration rolled back": "a configuration was cut with its entry, and the one before was in force again",
    "a removed node was stopped": "a node that is no member any more was stopped for good",
    "change given up": "a change of the members stopped half-way, visibly",
    "election in a joint configuration": "a leader was elected while two majorities were needed",
    # snapshots over the wire
    "snapshot installed": "a follower took the leader's snapshot in place of entries",
    "snapshot during a joint configuration": "a snapshot was made or taken while two majorities were needed",
    # permissions
    "permissions changed while users wrote": "an admin gave or took away what a user may do",
    "a permission was lost on the way": "a node admitted a write, which was refused at its place in the log",
    # the nemesis, and the end of trouble
    "a bare quorum went on alone": "a majority without a node to spare was healed, and went on without the rest",
    "a healthy majority elected a leader": "as few voters as possible were healthy, the others anything but",
    "a healthy majority elected a leader beside a disk that hangs": "that of another node, which runs",
    "five kinds at once": "five kinds of fault within ten simulated seconds",
}
"""Name -> what it means. Their number of worlds is in the stats of a run as `sometimes: <name>`."""

COUNTED: Final[dict[str, str]] = {
    "client operations unknown": "write with unknown outcome",
    "forwards": "forwarded write",
    "refused Busy": "refused as busy",
    "clock entries": "clock entry",
    "damaged frames refused": "damaged frame refused",
    "hellos refused": "hello refused",
    "messages replayed": "replayed message",
    "crash after the sync": "crash between sync and promise",
    "crash sending after a sync": "crash between sync and promise",
    "crash before applying": "crash while applying",
    "crash before applied": "crash while applying",
}
"""What the world counts anyway, and the state that it shows."""

WINDOW_US: Final = 10_000_000


class Coverage:
    """Looks at one world, and calls its `sometimes`."""

    def __init__(self, world: Cluster) -> None:
        self.world = world
        self._began: dict[NodeId, int] = {}  # where the log of each process ended when it began
        self._asking: dict[NodeId, int] = {}  # pre-candidates, and their terms
        self._campaigns: dict[NodeId, int] = {}
        self._leads: dict[NodeId, int] = {}
        self._handing: dict[NodeId, NodeId] = {}
        self._older: dict[NodeId, int] = {}  # leaders with uncommitted entries of older terms, and their no-ops
        self._configured: dict[NodeId, int] = {}  # the newest configuration that each node appended
        self._voting: dict[NodeId, HardState] = {}  # the newest that each process wanted durable
        self._taken: dict[tuple[int, int], int] = {}  # (session, sequence) -> the term it was applied in
        self._handlers: dict[str, Callable[[NodeId, Any], None]] = {
            "BecamePreCandidate": self._asks,
            "BecameCandidate": self._campaigns_now,
            "BecameFollower": self._follows,
            "BecameLeader": self._leads_now,
            "ConflictTruncated": self._cut,
            "FollowerProbing": lambda node, event: self.world.sometimes("follower probed again"),
            "FollowerNeedsSnapshot": lambda node, event: self.world.sometimes("follower needs a snapshot"),
            "TransferStarted": lambda node, event: self._handing.__setitem__(node, event.to),
            "TransferEnded": self._handed,
            "ConfigurationChanged": self._changed,
            "ChangeGivenUp": lambda node, event: self.world.sometimes("change given up"),
            "MessageIgnored": self._ignored,
            "Healed": lambda node, event: self.world.sometimes("a damaged log has healed"),
        }

    # -- from the cores ----------------------------------------------------------------------------------------

    def happened(self, node: NodeId, event: Event) -> None:
        handler = self._handlers.get(type(event).__name__)
        if handler is not None:
            handler(node, event)

    def ready(self, replica: Life, ready: Ready) -> None:
        if ready.fetches:
            for fetch in ready.fetches:
                self.world.sometimes("applied from disk" if fetch.peer == NOBODY else "fed from disk")
                if fetch.peer == NOBODY and fetch.after >= self._began.get(replica.node, fetch.after):
                    self.world.sometimes("entries left memory before they were applied")
        if ready.hard_state is not None:
            self._voting[replica.node] = ready.hard_state
        if ready.reads_failed:
            self.world.sometimes("read during a change of leader")
        if self._older and replica.node in self._older:
            self._look_at_older(replica)
        for entry in ready.entries:
            if entry.kind is EntryKind.CONFIGURATION:
                self._configured[replica.node] = entry.index

    def applied(self, entry: Entry, requests: Sequence[RequestBlock], effects: Effects) -> None:
        for request, effect in zip(requests, effects.requests, strict=False):  # plain appends have no rows
            key = request.session, request.sequence
            if effect.result is Result.REPEATED:
                self.world.sometimes("repeated request")
                if self._taken.get(key, entry.term) != entry.term:
                    self.world.sometimes("session retried at another leader")
            elif request.session:
                self._taken.setdefault(key, entry.term)

    def _asks(self, node: NodeId, event: Any) -> None:
        self._asking[node] = event.term
        if "link closed" in event.reason:
            self.world.sometimes("closed link began an election")

    def _campaigns_now(self, node: NodeId, event: Any) -> None:
        self._asking.pop(node, None)
        if node in self._campaigns:
            self.world.sometimes("split vote")
        self._campaigns[node] = event.term

    def _follows(self, node: NodeId, event: BecameFollower) -> None:
        world = self.world
        asked, led = self._asking.pop(node, None), self._leads.pop(node, None)
        if asked == event.term and event.leader != NOBODY:
            world.sometimes("pre-vote prevented a disruption")
        if event.leader != NOBODY:
            self._campaigns.pop(node, None)
        self._older.pop(node, None)
        if event.reason == "no majority answers":
            world.sometimes("check-quorum step-down")
        core = world.replicas[node].core
        if led is not None and core is not None and core.state.configuration.member(node) is None:
            world.sometimes("leader removed itself")  # it handed over, or went without
        elif led is not None and led < event.term:
            world.sometimes("deposed by a newer term")

    def _leads_now(self, node: NodeId, event: BecameLeader) -> None:
        world = self.world
        self._campaigns.clear()
        self._leads[node] = event.term
        running = [replica for replica in world.replicas.values() if replica.core is not None and not replica.is_paused]
        cores = [replica.core for replica in world.replicas.values() if replica.core is not None]
        if any(isinstance(core.state.role, Leader) and core.state.term < event.term for core in cores):
            world.sometimes("two leaders")
        core = world.replicas[node].core
        assert core is not None
        configuration, log = core.state.configuration, core.state.log
        if len(configuration.voters) > 1 and len(running) <= majority(len(configuration.voters)):
            world.sometimes("bare majority")
        if configuration.outgoing:
            world.sometimes("election in a joint configuration")
        if log.committed < event.index - 1:
            self._older[node] = event.index

    def _look_at_older(self, replica: Life) -> None:
        core = replica.core
        state = core.state if core is not None else None
        if state is None or not isinstance(state.role, Leader) or state.log.committed >= self._older[replica.node]:
            del self._older[replica.node]
            return
        matches = {peer: progress.match for peer, progress in state.role.progress.items()}
        matches[state.node] = state.log.persisted
        index = agreed(state.configuration, matches)
        if state.log.committed < index < self._older[replica.node]:
            self.world.sometimes("old term waits for the no-op")
            del self._older[replica.node]

    def _cut(self, node: NodeId, event: ConflictTruncated) -> None:
        world = self.world
        world.sometimes("conflict cut")
        if self._configured.get(node, 0) > event.kept:
            world.sometimes("configuration rolled back")
            del self._configured[node]
        disk = world.disks[node]
        held = disk.view.between(event.kept, event.lost)
        if held:
            holders = [other for other in world.disks.values() if other.view.has(held[0].index, held[0].term)]
            if 2 * len(holders) > len(world.configuration.voters):
                world.sometimes("entry on a majority was cut")
        if any(event.kept + 1 < first <= event.lost for first in disk.segment_firsts):
            world.sometimes("conflict cut over several segments")

    def _handed(self, node: NodeId, event: TransferEnded) -> None:
        self._handing.pop(node, None)
        self.world.sometimes("transfer done" if event.reason == "another term began" else "transfer given up")

    def _changed(self, node: NodeId, event: Any) -> None:
        if event.outgoing:
            self.world.sometimes("joint configuration")
            if any(voter not in event.outgoing for voter in event.voters):
                self.world.sometimes("learner promoted")

    def _ignored(self, node: NodeId, event: MessageIgnored) -> None:
        if event.reason == "this node still hears its leader":
            self.world.sometimes("sticky vote")

    # -- from the world ----------------------------------------------------------------------------------------

    def started(self, replica: Life, notices: Iterable[str] = ()) -> None:
        """A process began; `notices` list the repairs of its recovery."""
        world, core = self.world, replica.core
        assert core is not None
        self._began[replica.node] = core.state.log.last.index
        if replica.mark.index > 0:
            world.sometimes("restart from a snapshot")
        if replica.life > 1 and core.state.log.last.index < world.acknowledged:
            world.sometimes("restart behind the commit")
        for notice in notices:
            if "torn tail" in notice:
                world.sometimes("torn tail cut at restart")
            elif "a cut of the log" in notice:
                world.sometimes("interrupted cut finished at restart")
            elif LOG_IS_ASIDE in notice:
                world.sometimes("a damaged log was cut")
            elif SNAPSHOT_IS_ASIDE in notice:
                world.sometimes("a damaged snapshot was set aside")

    def crashed(self, node: NodeId, why: str) -> None:
        world = self.world
        voting, durable = self._voting.pop(node, None), world.disks[node].view.hard_state
        if voting is not None and (voting.term, voting.vote) != (durable.term, durable.vote):
            world.sometimes("crash before the vote was durable")
        elif voting is not None and why == "after the sync":
            world.sometimes("crash between persist and send")
        if node in self._handing:
            world.sometimes("leader crashed while handing over")
        for kept in (self._asking, self._campaigns, self._leads, self._handing, self._older):
            kept.pop(node, None)
        down = [replica for replica in world.replicas.values() if replica.core is None]
        if len(down) == len(world.replicas):
            world.sometimes("all nodes down")
        elif 2 * (len(world.replicas) - len(down)) <= len(world.replicas):
            world.sometimes("majority down")

    def finished(self) -> None:
        """The world ends: reads its counters and the list of its faults."""
        world = self.world
        world.stats["messages replayed"] = world.network.replayed
        for counted, name in COUNTED.items():
            if world.stats.get(counted):
                world.sometimes(name)
        faults = world.faults
        start = 0
        for end, fault in enumerate(faults):
            while faults[start].now_us < fault.now_us - WINDOW_US:
                start += 1
            if len({each.kind for each in faults[start : end + 1]}) >= 5:
                world.sometimes("five kinds at once")
                break
