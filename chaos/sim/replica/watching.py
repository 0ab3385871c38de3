"""Shows the witness what the watched parts of a replica do, and counts what its log says.

`raftlog.chaos.sim.replica.watched` calls it.
"""

from __future__ import annotations

from typing import Any, Final

from xxhash import xxh3_128_digest

from raftlog.chaos.sim.disk.disk import SimDisk
from raftlog.chaos.sim.ground.clocks import Clock
from raftlog.chaos.sim.ground.failure import Failure
from raftlog.chaos.sim.ground.machines import ShippedMachine
from raftlog.chaos.sim.invariants.durability import files_stay, made_snapshots
from raftlog.chaos.sim.invariants.log import one_oldest, snapshot_safety
from raftlog.chaos.sim.replica.life import Life, Surroundings
from raftlog.cluster.protocol.disk_reports import Handover, Why
from raftlog.raft.configuration import Configuration
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.ready import Ready
from raftlog.raft.types import Entry, Mark, NodeId
from raftlog.raft.wal.formats import LOG_FOLDER
from raftlog.raft.wal.operations import Delete, FileOperation, Rename
from raftlog.raft.wal.snapshot_files import SNAPSHOTS
from raftlog.statemachine.commands import LogEntry
from raftlog.statemachine.effects import Effects

LOGGED: Final = frozenset(
    {
        "log_deleted",
        "snapshot_not_saved",
        "note_not_written",
        "damage_stays",
        "handing_over",
        "followers_held",
        "digest_point_agreed",
        "states_differ",
        "file_damaged",
        "backfill_segment",
        "backfill_kept_segment",
        "backfill_wrong",
        "disk_hangs",
    }
)
"""Lines of the server's log that a world counts."""

HANDS_OVER: Final = {
    Why.FULL: "a full leader hands over",
    Why.SLOW: "a leader with a slow disk hands over",
    Why.CLOCK: "a leader with a wrong clock hands over",
}

_SNAPSHOT: Final = f"{SNAPSHOTS}/"
_LOG: Final = f"{LOG_FOLDER}/"


class Watching(Life):
    """Receives the reports of the parts of a replica."""

    def __init__(self, world: Surroundings, node: NodeId, disk: SimDisk, copy: str = "") -> None:
        super().__init__(world, node, disk, copy)
        self.apply_us = world.swarm.apply_us * world.random_of(f"apply {node}{copy}").getrandbits(1)

    def _forget(self) -> None:
        super()._forget()
        self.sending = "sending"  # why messages leave now, for the names of crashes

    def _follow_yours(self) -> None:
        """A state machine of your own goes on beside the state that was restored."""
        machine = self.state.applier.machine
        if self.world.yours is not None:
            assert isinstance(machine, ShippedMachine)
            self.shown.yours = self.world.yours.beside(machine)

    def stepped(self, core: RaftCore) -> None:
        if core is self.core:
            self._check(self.world.witness.stepped, core)

    def took(self, ready: Ready) -> None:
        self._check(self.world.took, self, ready)
        if ready.entries:
            times = self.world.witness.times
            self._check(times.stamped, self.core, ready.entries, self.world.now_us // 1_000, self._right_ms())

    def _right_ms(self) -> int:
        """The newest of the wall clocks that are right."""
        world = self.world
        clocks: list[Clock] = [each.clock for each in world.replicas.values()]
        return max([clock.read(world.now_us).wall_ms for clock in clocks if not clock.off_ms])

    def trims(self, before: int) -> None:
        """The retention policy of this node asks for a trim."""
        policy = self.state.retention.policy
        if policy.age_ms and not policy.bytes:
            self.world.sometimes("records were trimmed by their age")
            self._check(self.world.witness.times.trims, self.node, before, policy.age_ms, self.world.now_us // 1_000)

    def applied(self, entry: Entry, command: LogEntry, effects: Effects) -> None:
        self._check(self._applied, entry, command, effects)

    def _applied(self, entry: Entry, command: LogEntry, effects: Effects) -> None:
        world = self.world
        if self.shown.yours is not None:
            self.shown.yours.follow(entry, effects)
        world.applied(self, entry, command, effects)
        machine = self.machine
        if machine.point != self.shown.point:
            self.shown.point = machine.point
            world.witness.diverged.applied(self.node, *machine.point)
        if self.apply_us:
            self.clockwork.apply_due_us = world.now_us + self.apply_us

    @property
    def applies_slowly(self) -> bool:
        return bool(self.apply_us) and not self.world.is_healed

    def must_apply_later(self) -> bool:
        """Whether the entry before still takes its time."""
        if self.world.now_us >= self.clockwork.apply_due_us or self.world.is_healed:
            return False
        self.world.at(self.clockwork.apply_due_us, self._apply_later, self.life)
        return True

    def _apply_later(self, life: int) -> None:
        if life == self.life and self.replica is not None and not self.is_behind:
            self.replica.wake()

    def restored(self, mark: Mark) -> None:
        self._check(self._restored, mark)

    def _restored(self, mark: Mark) -> None:
        world = self.world
        self._follow_yours()
        self.shown.point = self.state.applier.machine.point
        world.state_replaced(self)
        world.witness.states.restored(self.node, mark, self.machine)
        world.sometimes("snapshot installed")

    def installed(self, mark: Mark, before: tuple[int, int], had: bool, configuration: Configuration) -> None:
        if configuration.outgoing:
            self.world.sometimes("snapshot during a joint configuration")
        known, log = self.world.witness.known, self.state.core.state.log
        self._check(snapshot_safety.installed, known, self.node, mark, before, had, log)

    def saved(self, mark: Mark, data: bytes) -> None:
        """A snapshot of the state after `mark` has its name."""
        self.world.count("snapshots")
        self._check(self.world.witness.states.effects.saved, self.node, mark.index, xxh3_128_digest(data))

    def compacted(self, mark: Mark) -> None:
        known, log = self.world.witness.known, self.state.core.state.log
        self._check(snapshot_safety.compacted, known, self.node, mark, log)

    def file_moved(self, part: int, operation: FileOperation) -> None:
        """The disk of the process renamed or deleted a file or folder."""
        if self.core is None:
            return
        match operation:
            case Rename(name=name, to=to) if to.startswith(_SNAPSHOT) and to.removeprefix(_SNAPSHOT).isdigit():
                index = int(to.removeprefix(_SNAPSHOT))
                known = self.world.witness.known
                self._check(made_snapshots.named, known, self.node, self.disk.log, self.disk.files, index)
            case Rename(name=name) if name.startswith(_SNAPSHOT) and name.removeprefix(_SNAPSHOT).isdigit():
                index = int(name.removeprefix(_SNAPSHOT))
                self._check(made_snapshots.removed, self.node, self.disk.files, index)
            case Delete(name=name) if name.startswith(_LOG) and name.endswith(".seg"):
                self._segment_deleted(part, int(name[len(_LOG) : -4]))

    def _segment_deleted(self, part: int, first: int) -> None:
        core = self.core
        assert core is not None
        if any(each.core is None and each.disk.view.durable_last < first for each in self.world.replicas.values()):
            self.world.sometimes("a trim passed a stopped follower")
        following = min(
            (each for each in self.disk.segment_firsts if each > first), default=core.state.log.last.index + 1
        )
        self._check(
            files_stay.deleted,
            self.node,
            part,
            first,
            following - 1,
            applied=self.mark.index,
            oldest=self.state.machine.oldest,
            core_first=core.state.log.first,
            snapshots=self.disk.snapshots(),
        )

    def looks_at_others(self) -> None:
        """The server asks for a digest point, to see whether all others are well."""
        self.shown.ill = self._others_ill()

    def _others_ill(self) -> dict[NodeId, int]:
        """The others that are down, or have still to heal; each with its life."""
        others = [each for each in self.world.replicas.values() if each.node != self.node]
        return {
            each.node: each.life
            for each in others
            if each.core is None or each.disk.view.is_healing or each.core.state.recall.floor
        }

    def _check_end_for_damage(self) -> None:
        core = self.core
        assert core is not None
        if self.state.damage.is_stuck:
            return  # it waited for a calm time instead
        still = [node for node, life in self._others_ill().items() if (self.shown.ill or {}).get(node) == life]
        voters = [node for node in still if core.state.configuration.is_voter(node)]
        if voters:
            text = f"node {self.node} while {voters} are down or heal"
            raise Failure("a node ends for damage only while the others are well", text)

    def _logged(self, event: str, values: dict[str, Any]) -> None:
        """A line of the server's log that the world counts; an error that no code expects ends the world."""
        world, error = self.world, values.get("exc_info")
        if isinstance(error, Exception):
            self._breach(error)
        match event:
            case "log_deleted":
                world.sometimes("trimmed segments deleted")
                kept = (self.disk.first_index, self.state.machine.oldest, self.disk.view.base.index)
                self._check(one_oldest.kept, self.node, *kept)
            case "handing_over" if "why" in values:
                self._hands_over()
            case "damage_stays":
                if "one or two voters" in values["mend"]:
                    world.sometimes("damage stays: no voter could heal it")
                else:
                    world.sometimes("damage stays: a repair would cost history")
            case "followers_held":
                world.sometimes("a full follower is sent no entries")
            case "digest_point_agreed":
                world.count("digest points agreed")
            case "states_differ":
                world.sometimes("nothing is written because no majority has one state")
            case "note_not_written":
                world.count("ended without a note")
            case _:
                world.count(f"logged: {event}")

    def _hands_over(self) -> None:
        view = self.state.disks
        assert view.handed_over is not None
        handover: Handover = view.handed_over[0]
        self.world.sometimes(HANDS_OVER[handover.why])
        pause_ms = view.rules.slow_pause_ms if handover.why is Why.SLOW else view.rules.full_pause_ms
        self._check(self.world.witness.hand_overs.began, self.node, self.life, handover, view.handed_over[1], pause_ms)
