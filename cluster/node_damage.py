"""What a node does about damage in its own files while it runs: tells it, and ends for a start to mend it.

A start cuts a damaged log and heals from the other nodes, without a vote until then (docs/decisions/0009). Two nodes of
three that heal at once leave nobody who could be elected. So a node ends by itself only when it knows that the others
are well: it follows, its links to all voters are up, and each of them has reported a digest point that it just had
committed, in the term of now; whoever still heals has not applied an entry of that term. Until then it goes on, without
what it cannot read. One that cannot apply what is committed sees no such point, and waits for a calm time instead.
Where a start would drop older history for it, it does so only where a majority of the others has that: it is fetched
again (`cluster.node_backfill`). Else the node goes on too: a person decides.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from cluster import clock, node_kept
from cluster.damage import (
    FIRST_LOOK_S,
    LOOK_S,
    POINT_S,
    RETRY_S,
    Asked,
    Leadership,
    are_links_up,
    are_others_well,
    is_alone,
)
from cluster.disk_errors import DiskError, ReadDamaged
from cluster.disk_findings import FilesDamaged, Finding
from cluster.disk_scrub import Scrub
from cluster.points import POINT_BLOCK
from cluster.scrubbing import derived, snapshots_among
from cluster.wire import ApiError, ScrubStatus
from raft.ready import Fetch
from raft.refusals import Refused
from raft.storage_snapshots import SNAPSHOTS, snapshot_folder
from raft.types import NOBODY

if TYPE_CHECKING:
    from cluster.node import Node

CALM_S: Final = 10.0
"""A node that cannot apply ends when for so long one leader led and all links were up: others have healed by then."""
TOLD_MAX: Final = 16
"""Places that are told one by one; a file can be damaged from one end to the other."""
ALONE: Final = "two voters or one cannot go on without this node: `raftlog disk check` says more"
COSTLY: Final = (
    "a start would mend it, and drop older history that too few others have: see that they do, stop it, remove the"
    " .idx beside it (or the .ledger itself), and start it (docs/operations.md, A damaged file)"
)


class DamageWork:
    """One node's. Not thread-safe: it belongs to the node's event loop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._findings: list[Finding] = []
        self._task: asyncio.Task[None] | None = None
        self._noting: asyncio.Future[None] | None = None
        self._is_stuck = False  # what cannot be read is to be applied
        self._is_asked = False  # a follower lacks what this leader cannot read
        self._calm: tuple[Leadership, float] | None = None  # term and leader, and since when all was well
        self._scrub: Scrub | None = None
        self._scrub_failures, self._scrub_failure = 0, ""  # rounds that ended early, and why the last one did
        gauge = node.metrics.gauge
        gauge("raftlog_damaged_places", "Places in this node's files known to be damaged", lambda: len(self._findings))
        gauge("raftlog_scrub_rounds", "Rounds through all files that scrubbing finished", lambda: self.status().rounds)
        gauge("raftlog_scrub_failures", "Rounds that ended early: the log says why", lambda: self._scrub_failures)
        gauge("raftlog_scrub_bytes", "Bytes that scrubbing has read", lambda: self.status().bytes)

    @property
    def is_known(self) -> bool:
        """Whether something in this node's files is damaged that it could want. An older snapshot is not: it only stays
        until one more is saved, which may take for ever."""
        newest = snapshot_folder(self._node.snapshots.index)
        return any(not each.file.startswith(SNAPSHOTS) or each.file.startswith(newest) for each in self._findings)

    # -- scrubbing ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to read the files in the background."""
        settings = self._node.settings.scrub
        self._scrub = self._node.disk.scrub(
            self._scrubbed,
            self._scrub_failed,
            bytes_per_second=settings.bytes_per_second,
            pause_s=settings.pause_ms / 1_000,
        )

    def status(self) -> ScrubStatus:
        """For `/v1/status`."""
        scrub, damage = self._scrub, "; ".join(str(each) for each in self._findings)
        if scrub is None:
            return ScrubStatus(damage=damage)
        age_ms = -1 if scrub.ended_at is None else int((clock.monotonic() - scrub.ended_at) * 1_000)
        return ScrubStatus(scrub.rounds, scrub.bytes, scrub.file, age_ms, damage)

    def _scrubbed(self, findings: list[Finding]) -> None:
        """In the scrubbing thread."""
        try:
            self._loop.call_soon_threadsafe(self._take, findings, "scrub")
        except RuntimeError:
            pass  # the loop is closed

    def _scrub_failed(self, error: Exception) -> None:
        """In the scrubbing thread: a round ended early. The next one looks again; each reason gets one line."""
        self._scrub_failures += 1
        reason = f"{type(error).__name__}: {error}"
        if reason != self._scrub_failure:
            self._scrub_failure = reason
            self._node.logger.error(
                "scrub_round_failed", reason=reason, then="the next round begins after scrub.pause_ms", exc_info=error
            )

    # -- damage ---------------------------------------------------------------------------------------------------

    def fetch_failed(self, fetch: Fetch, error: BaseException) -> None:
        """What a follower lacks, or what is to be applied, could not be read; the core asks again."""
        self._node.logger.error("read_failed", after=fetch.after, to=fetch.to, reason=str(error))
        if isinstance(error, ReadDamaged):
            self._is_stuck = self._is_stuck or fetch.peer == NOBODY
            self._is_asked = fetch.peer != NOBODY
            self.met(error)

    def met(self, error: ReadDamaged) -> None:
        """A reader met it."""
        if self._task is None and not self._node.ended.done():
            self._node.logger.error("read_damaged", reason=str(error.damage))
            self._begin(self._look(error))

    async def _look(self, error: ReadDamaged) -> None:
        self._tell(await self._node.disk.look_closer(error.damage), "reader")
        await self._wait_and_end()

    def _take(self, findings: list[Finding], by: str) -> None:
        if self._node.ended.done():
            return
        self._tell(findings, by)
        if derived(findings) and self._task is None:
            self._begin(self._wait_and_end())

    def _tell(self, findings: Sequence[Finding], by: str) -> None:
        """Logs what is new, and has a damaged snapshot replaced."""
        node = self._node
        for each in findings:
            told = [(one.file, one.position) for one in self._findings]
            if (each.file, each.position) in told or len(told) >= TOLD_MAX:
                continue
            self._findings.append(each)
            node.logger.error(
                "file_damaged", file=each.file, position=each.position, after=each.index, what=each.what, by=by
            )
        if snapshots_among(findings, [node.snapshots.index]):
            node.snapshots.is_damaged = True

    def snapshot_saved(self) -> None:
        """A damaged one is not the newest any more: scrubbing will tell what is still there."""
        self._findings = [each for each in self._findings if not each.file.startswith(SNAPSHOTS)]

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = self._loop.create_task(work)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._node.fail(error)

    async def _wait_and_end(self) -> None:
        node = self._node
        is_told = False
        # Nodes that scrub at the same pace find damage at the same moment. Two that look together may both end.
        await asyncio.sleep(FIRST_LOOK_S * random.random())
        while not node.ended.done():
            free = [] if self._is_alone else await node.disk.mended_for_free(self._findings)
            if not free and not self._is_alone and await node_kept.is_kept_by_others(node):
                free = [each for each in self._findings if derived([each])]
            if free:
                if await self._are_others_well():
                    node.fail(FilesDamaged(free))
                    return
            elif not is_told:
                is_told = True
                node.logger.error("damage_stays", mend=ALONE if self._is_alone else COSTLY)
            if self._is_asked and node.is_leader:  # another one can read it
                self._is_asked = False
                self._hand_over()
            await asyncio.sleep(RETRY_S * random.uniform(0.5, 1.5))

    @property
    def _is_alone(self) -> bool:
        """Whether nobody could heal it: then a start would refuse its log."""
        return is_alone(self._node.core.state.configuration, self._node.node_id)

    async def _are_others_well(self) -> bool:
        """See above. A leader hands over first."""
        node = self._node
        state = node.core.state
        if node.is_leader:
            self._hand_over()
            return False
        leadership = Leadership(state.term, state.leader)
        if self._is_stuck:
            if not self._are_links_up() or state.leader == NOBODY:
                self._calm = None
            elif self._calm is None or self._calm[0] != leadership:
                self._calm = (leadership, clock.monotonic())
            return self._calm is not None and clock.monotonic() - self._calm[1] >= CALM_S
        until = clock.monotonic() + POINT_S
        try:
            point = await node.submit(POINT_BLOCK, 1, deadline=until)
        except ApiError:
            return False
        asked = Asked(point.last, point.term, leadership)
        while clock.monotonic() < until and not node.ended.done():
            now = Leadership(state.term, state.leader)
            points, configuration = node.watch.points, state.configuration
            well = are_others_well(points, configuration, asked, now, links_up=self._are_links_up)
            if well is not None:
                return well
            await asyncio.sleep(LOOK_S)
        return False

    def _hand_over(self) -> None:
        node = self._node
        try:
            node.core.transfer(NOBODY, clock.read())
        except Refused as error:
            node.logger.info("not_handing_over", reason=str(error))
        node.wake()

    def _are_links_up(self) -> bool:
        node = self._node
        links, configuration = node.transport.links_seen(), node.core.state.configuration
        return are_links_up(configuration, node.node_id, lambda peer: peer in links and links[peer].is_up)

    # -- the end --------------------------------------------------------------------------------------------------

    def leave(self, error: FilesDamaged) -> None:
        """The node ends for it: what the next start needs is noted in the files."""
        self._noting = asyncio.ensure_future(self._leave(error))

    async def _leave(self, error: FilesDamaged) -> None:
        try:
            await self._node.disk.leave_to_start(error.findings)
        except (DiskError, OSError) as failure:
            self._node.logger.error("note_not_written", reason=str(failure))

    async def close(self, timeout_s: float) -> None:
        """Ends what is under way."""
        if self._task is not None:
            self._task.cancel()
        tasks = [task for task in (self._task, self._noting) if task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
