"""Reports damage that is found in a node's own files while it runs, and ends the node so that its restart repairs it.

Scrubbing, readers and fetches call it. A start cuts a damaged log and repairs it from the other nodes
(docs/decisions/0009). The node has no vote until then, so two of three nodes that repair at once could elect no leader.
A node therefore ends itself only when it knows that the others are well. It must be a follower with all its links up.
Each other voter must have reported a digest point that this node just had committed in the current term. A voter that
still repairs has not applied an entry of this term. Until then the node serves without the damaged parts.
A node that cannot apply committed entries does not see such a point. It waits until leader and links were stable for a
while.
If a start would drop older history, a majority of the others must have that history, because the node fetches it again
(`raftlog.cluster.replica.upkeep.backfill`). Otherwise the node stays up, and the operator decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from raftlog.cluster.api.errors import ApiError
from raftlog.cluster.api.status import ScrubStatus
from raftlog.cluster.files.errors import DiskError, ReadDamaged
from raftlog.cluster.files.findings import FilesDamaged, Finding
from raftlog.cluster.files.scrub import derived, snapshots_among
from raftlog.cluster.protocol.damage_policy import (
    FIRST_LOOK_S,
    LOOK_S,
    POINT_S,
    RETRY_S,
    Leadership,
    Probe,
    are_others_well,
)
from raftlog.cluster.protocol.digest_points import POINT_BLOCK
from raftlog.cluster.replica.state import ReplicaState
from raftlog.cluster.replica.upkeep import history_guard
from raftlog.cluster.runtime import clock
from raftlog.raft.ready import Fetch
from raftlog.raft.refusals import ProposalRefused
from raftlog.raft.types import NOBODY

CALM_S: Final = 10.0
"""A node that cannot apply ends after one leader led and all links were up for this many seconds: other nodes are
repaired by then."""
TOLD_MAX: Final = 16
"""Most damaged places that are logged and kept one by one; a file can be damaged from one end to the other."""
ALONE: Final = "a cluster of one or two voters cannot go on without this node: run `raftlog disk check`"
COSTLY: Final = (
    "a start would repair it and drop older history that too few other nodes have: make sure that they have it, then"
    " stop this node, remove the .idx beside the file (or the .ledger itself), and start it"
    " (docs/operations/disks.md, A damaged file)"
)


# -- scrubbing ------------------------------------------------------------------------------------------------


def start(replica: ReplicaState) -> None:
    """Begins to scrub the files in the background."""
    settings = replica.settings.scrub
    replica.damage.scrub = replica.disk.scrub(
        partial(_scrubbed, replica, asyncio.get_running_loop()),
        partial(_scrub_failed, replica),
        bytes_per_second=settings.bytes_per_second,
        pause_s=settings.pause_ms / 1_000,
    )


def status(replica: ReplicaState) -> ScrubStatus:
    """The scrub part of `/v1/status`."""
    scrub, found = replica.damage.scrub, "; ".join(str(each) for each in replica.damage.findings)
    if scrub is None:
        return ScrubStatus(damage=found)
    age_ms = -1 if scrub.ended_at is None else int((clock.monotonic() - scrub.ended_at) * 1_000)
    return ScrubStatus(scrub.rounds, scrub.bytes, scrub.file, age_ms, found)


def _scrubbed(replica: ReplicaState, loop: asyncio.AbstractEventLoop, findings: list[Finding]) -> None:
    """Hands the findings to the event loop. Runs in the scrubbing thread."""
    try:
        loop.call_soon_threadsafe(_take, replica, findings, "scrub")
    except RuntimeError:
        pass  # the loop is closed


def _scrub_failed(replica: ReplicaState, error: Exception) -> None:
    """Logs why a round ended early, once for each reason; the next round reads again. Runs in the scrubbing thread."""
    damage = replica.damage
    damage.scrub_failures += 1
    reason = f"{type(error).__name__}: {error}"
    if reason != damage.scrub_failure:
        damage.scrub_failure = reason
        replica.logger.error(
            "scrub_round_failed", reason=reason, then="the next round begins after scrub.pause_ms", exc_info=error
        )


# -- damage ---------------------------------------------------------------------------------------------------


def fetch_failed(replica: ReplicaState, fetch: Fetch, error: BaseException) -> None:
    """The disk could not read entries that a follower or the state machine needs. The core asks again."""
    damage = replica.damage
    replica.logger.error("read_failed", after=fetch.after, to=fetch.to, reason=str(error))
    if isinstance(error, ReadDamaged):
        damage.is_stuck = damage.is_stuck or fetch.peer == NOBODY
        damage.is_asked = fetch.peer != NOBODY
        met(replica, error)


def met(replica: ReplicaState, error: ReadDamaged) -> None:
    """A reader met damage: looks closer at the file, and begins to wait for a good moment to end."""
    damage = replica.damage
    if damage.task is None and not replica.life.is_over:
        replica.logger.error("read_damaged", reason=str(error.damage))
        damage.task = replica.driver.spawn(_look(replica, error))


async def _look(replica: ReplicaState, error: ReadDamaged) -> None:
    _tell(replica, await replica.disk.look_closer(error.damage), "reader")
    await _wait_and_end(replica)


def _take(replica: ReplicaState, findings: list[Finding], by: str) -> None:
    damage = replica.damage
    if replica.life.is_over:
        return
    _tell(replica, findings, by)
    if derived(findings) and damage.task is None:
        damage.task = replica.driver.spawn(_wait_and_end(replica))


def _tell(replica: ReplicaState, findings: Sequence[Finding], by: str) -> None:
    """Logs new findings, and has a damaged snapshot replaced."""
    damage = replica.damage
    for each in findings:
        places = [(one.file, one.position) for one in damage.findings]
        if (each.file, each.position) in places or len(places) >= TOLD_MAX:
            continue
        damage.findings.append(each)
        replica.logger.error(
            "file_damaged", file=each.file, position=each.position, after=each.index, what=each.what, by=by
        )
    if snapshots_among(findings, [replica.snapshots.index]):
        replica.snapshots.is_damaged = True


async def _wait_and_end(replica: ReplicaState) -> None:
    damage = replica.damage
    is_told = False
    # Nodes that scrub at the same pace find damage at the same moment. Two that look together wait for each other.
    await asyncio.sleep(FIRST_LOOK_S * replica.random.random())
    while not replica.life.is_over:
        free = [] if _is_alone(replica) else await replica.disk.mended_for_free(damage.findings)
        if not free and not _is_alone(replica) and await history_guard.is_kept_by_others(replica):
            free = [each for each in damage.findings if derived([each])]
        if free:
            if await _are_others_well(replica):
                replica.driver.fail(FilesDamaged(free))
                return
        elif not is_told:
            is_told = True
            replica.logger.error("damage_stays", mend=ALONE if _is_alone(replica) else COSTLY)
        if damage.is_asked and replica.is_leader:  # a leader with intact files can read it
            damage.is_asked = False
            _hand_over(replica)
        await asyncio.sleep(RETRY_S * replica.random.uniform(0.5, 1.5))


def _is_alone(replica: ReplicaState) -> bool:
    """Whether no other node could repair the damage: a start would then refuse the log."""
    return bool(replica.core.state.configuration.needs(replica.identity.node))


async def _are_others_well(replica: ReplicaState) -> bool:
    """Whether the others are well, by the rules of the module's docstring. A leader first hands over."""
    damage = replica.damage
    state = replica.core.state
    if replica.is_leader:
        _hand_over(replica)
        return False
    leadership = Leadership(state.term, state.leader)
    if damage.is_stuck:
        if not _are_links_up(replica) or state.leader == NOBODY:
            damage.calm = None
        elif damage.calm is None or damage.calm[0] != leadership:
            damage.calm = (leadership, clock.monotonic())
        return damage.calm is not None and clock.monotonic() - damage.calm[1] >= CALM_S
    points = replica.watch.points
    points.is_ending = True  # two nodes that ask at once would each be reported well by the other
    points.is_ending = await _is_point_reported(replica, leadership)
    return points.is_ending


async def _is_point_reported(replica: ReplicaState, leadership: Leadership) -> bool:
    """Whether every voter reports a digest point that is committed now."""
    state = replica.core.state
    until = clock.monotonic() + POINT_S
    try:
        point = await replica.driver.submit(POINT_BLOCK, 1, deadline=until)
    except ApiError:
        return False
    asked = Probe(point.last, point.term, leadership)
    while clock.monotonic() < until and not replica.life.is_over:
        now = Leadership(state.term, state.leader)
        points, configuration = replica.watch.points, state.configuration
        well = are_others_well(points, configuration, asked, now, links_up=partial(_are_links_up, replica))
        if well is not None:
            return well
        await asyncio.sleep(LOOK_S)
    return False


def _hand_over(replica: ReplicaState) -> None:
    try:
        replica.core.transfer(NOBODY, clock.read())
    except ProposalRefused as error:
        replica.logger.info("not_handing_over", reason=str(error))
    replica.driver.wake()


def _are_links_up(replica: ReplicaState) -> bool:
    """Whether this node reaches every voter."""
    links, configuration = replica.links.links_seen(), replica.core.state.configuration
    voters = [peer for peer in configuration.peers(replica.identity.node) if configuration.is_voter(peer)]
    return all(peer in links and links[peer].is_up for peer in voters)


# -- the end --------------------------------------------------------------------------------------------------


async def leave_note(replica: ReplicaState, error: FilesDamaged) -> None:
    """Leaves the notes that the next start needs, because the node ends for this damage."""
    try:
        await replica.disk.leave_to_start(error.findings)
    except (DiskError, OSError) as failure:
        replica.logger.error("note_not_written", reason=str(failure))
