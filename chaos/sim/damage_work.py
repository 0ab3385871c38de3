"""What a running node does about damage in its files, as cluster/node_damage.py: reads them, tells it, and ends for it.

What it looks with, what a start would mend for free and when the others are well are the server's own. Here nobody
fetches older history again, so damage whose mending would cost some stays; and a reader that meets damage leaves it to
scrubbing.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from chaos.sim.chores import Chore
from chaos.sim.disk_errors import DiskFull
from chaos.sim.failure import Failure
from chaos.sim.files import ScrubbedFiles
from cluster.damage import LOOK_S, POINT_S, RETRY_S, Asked, Leadership, are_links_up, are_others_well, is_alone
from cluster.disk_findings import FilesDamaged, Finding
from cluster.points import POINT_BLOCK
from cluster.scrubbing import Looker, derived, mended_for_free, snapshots_among
from cluster.wire import Problem
from raft.core import RaftCore
from raft.journal import segment_name
from raft.storage_snapshots import SNAPSHOTS
from raft.types import NOBODY, NodeId, Now

if TYPE_CHECKING:
    from chaos.sim.replica import Replica
    from chaos.sim.requests import Answer

STEP_US: Final = 2_000
"""From one look at a piece of a file to the next."""

PAUSES_US: Final = (300_000, 1_000_000, 5_000_000)
"""From one round through all files to the next, give or take a half: each world has its own."""

WAIT_US: Final = 500
"""How long until it is looked again whether the disk is free."""

PAUSED_US: Final = 50_000
"""How often a process that is stopped would look, were it not."""


class DamageWork:
    """One process's; gone with it."""

    __slots__ = ("_ending", "_findings", "_scrubbing", "_told", "replica")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._findings: list[Finding] = []
        self._told: set[str] = set()  # files, in this round
        self._scrubbing = Chore(replica)
        self._ending = Chore(replica)

    # -- scrubbing ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to read the files in the background."""
        self._scrubbing.begin(self._scrub(), is_later=True)

    def _scrub(self) -> Generator[int, None, None]:
        replica = self.replica
        storage, random, pause_us = replica.disk.running(), replica.scrub_random, replica.world.scrub_us
        looker = Looker(ScrubbedFiles(replica.disk.files), storage.journal, storage.ledger)
        while True:
            yield random.randint(pause_us // 2, pause_us * 3 // 2)
            self._told.clear()
            due = self._to_find()
            for seconds in looker.round(self._found):
                yield int(seconds * 1_000_000) or STEP_US
                while replica.is_paused:
                    yield PAUSED_US
            still = self._to_find()
            for name, what in due.items():
                if still.get(name) == what and not any(name.startswith(file) for file in self._told):
                    raise Failure("scrubbing finds what is damaged", f"node {replica.node}: {what}")

    def _to_find(self) -> dict[str, str]:
        """What was done, and shows, to files that a round reads: sealed segments whose rows are written, snapshots."""
        disk = self.replica.disk
        journal = disk.running().journal
        files = {segment_name(one.first) for one, _ in pairwise(journal.segments) if one.last.index <= journal.indexed}
        folders = tuple(f"{SNAPSHOTS}/{index:020d}/" for index in disk.snapshots())
        return {
            name: what
            for name, what in disk.damaged.items()
            if (name in files or name.startswith(folders)) and not disk.files.nodes[name].is_mended
        }

    def _found(self, findings: list[Finding]) -> None:
        """Scrubbing tells what is wrong in one place. Raises Failure where nothing is."""
        replica = self.replica
        world, disk = replica.world, replica.disk
        for each in findings:
            place = each.file.rpartition(".")[0] or each.file
            if not any(inode.wounds and name.startswith(place) for name, inode in disk.files.nodes.items()):
                raise Failure("scrubbing tells of damage alone", f"node {replica.node}: {each}")
            if each.file not in self._told:
                world.note(replica.node, "scrubbing found", str(each))
            self._told.add(each.file)
            if (each.file, each.position) not in [(one.file, one.position) for one in self._findings]:
                self._findings.append(each)
        if any(name not in disk.met for name in self._told if name.endswith(".seg")):
            world.sometimes("scrubbing found damage before a reader")
        if snapshots_among(findings, [replica.snapshots.index]):
            world.sometimes("scrubbing found a damaged snapshot")
            replica.save_snapshot()
        if derived(findings) and not self._ending.is_on:
            self._ending.begin(self._wait_and_end(), is_later=True)

    # -- the end -----------------------------------------------------------------------------------------------

    def _wait_and_end(self) -> Generator[int, None, None]:
        replica, world = self.replica, self.replica.world
        while True:
            while replica.is_paused:
                yield PAUSED_US
            core, disk = replica.core, replica.disk
            assert core is not None
            free = mended_for_free(self._findings, disk.first_index, disk.snapshots())
            if is_alone(core.state.configuration, replica.node):
                world.sometimes("damage stays: nobody could heal it")
            elif not free:
                world.sometimes("damage stays: mending it would cost history")
            elif (yield from self._are_others_well()):
                yield from self._leave(FilesDamaged(free))
            yield int(RETRY_S * 1_000_000 * replica.scrub_random.uniform(0.5, 1.5))

    def _are_others_well(self) -> Generator[int, None, bool]:
        replica, world = self.replica, self.replica.world
        core = replica.core
        assert core is not None
        state = core.state
        if state.leader == replica.node:
            replica.tell(self._hand_over)
            return False
        ill = self._ill()
        leadership, until_us = Leadership(state.term, state.leader), world.now_us + int(POINT_S * 1_000_000)
        answers: list[Answer] = []
        replica.submit(POINT_BLOCK, 1, 0, 0, until_us, answers.append)
        links_up = partial(are_links_up, is_up=lambda peer: world.links.is_up(replica.node, peer))
        while world.now_us < until_us:
            yield int(LOOK_S * 1_000_000)
            if not answers or replica.is_paused:
                continue
            point = answers[0]
            if isinstance(point, Problem):
                return False
            configuration = state.configuration
            well = are_others_well(
                replica.requests.points.points, configuration, Asked(point.index, point.term, leadership),
                Leadership(state.term, state.leader), links_up=lambda: links_up(state.configuration, replica.node),
            )  # fmt: skip
            if well is not None:
                still = [node for node, life in self._ill().items() if ill.get(node) == life]
                voters = [node for node in still if configuration.is_voter(node)]
                if well and voters:
                    text = f"node {replica.node} while {voters} are down or heal"
                    raise Failure("a node ends for damage only while the others are well", text)
                return well
        return False

    def _hand_over(self, core: RaftCore, now: Now) -> None:
        self.replica.world.attempt(self.replica.node, lambda: core.transfer(NOBODY, now))

    def _ill(self) -> dict[NodeId, int]:
        """The others that are down, or have still to heal; each with its life."""
        world, node = self.replica.world, self.replica.node
        return {
            each.node: each.life
            for each in world.replicas.values()
            if each.node != node and (each.core is None or each.disk.view.is_healing or each.core.state.floor)
        }

    def _leave(self, error: FilesDamaged) -> Generator[int, None, None]:
        """What the next start needs is noted in the files, and the process ends."""
        replica, disk = self.replica, self.replica.disk
        while disk.is_busy:
            yield WAIT_US
        disk.check()
        disk.is_busy = True
        try:
            yield from replica.work.stepwise(disk.steps(disk.running().leave_to_start(derived(error.findings))))
        except DiskFull:
            replica.world.count("ended for damage without a note")
        finally:
            disk.is_busy = False
        replica.world.sometimes("a node ended for damage, the others being well")
        replica.crash(f"files damaged: {error}", power=False)
