"""Damages a disk for good: flipped bits, misdirected and stale blocks, and a disk that comes back empty.

The atlas is asked first: of everything promised enough intact copies stay, so that whatever is damaged, the healed
cluster goes on with what it acknowledged. A damaged log is cut at the next start, and heals from the others. A node
beyond repair stops loudly, at its next start at the latest; when the world is healed it is taken away.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from raftlog.chaos.sim.disk import newest as disk_newest
from raftlog.chaos.sim.disk.disk import Hit, SimDisk
from raftlog.chaos.sim.disk.faults import AREAS, FATAL
from raftlog.chaos.sim.nemesis.promises import (
    LOOK_US,
    Peers,
    has_everything,
    put_back,
    start_until_taken,
    take_away,
    watch,
)
from raftlog.chaos.sim.nemesis.targets import anyone, for_a_while, several
from raftlog.chaos.sim.replica.hello import NOBODY_YET
from raftlog.chaos.sim.world.world import World
from raftlog.raft.hello import NEVER_MET
from raftlog.raft.types import NEW_DISK, NodeId
from raftlog.raft.wal.formats import segment_name
from raftlog.raft.wal.operations import Delete

AROUND_US: Final = 2_000_000
"""How long a machine with an old copy of its disk stays at most."""

CHECKED_US: Final = 3_000_000
"""How soon an operator stops a node and looks at its disk."""

NEWEST_AREAS: Final = {"row": "idx", "effects": "ledger"}
"""The area of the atlas that a region of the newest batch belongs to; all other regions belong to the log."""


def heal(world: World) -> None:
    """Operators check every disk: a node beyond repair is taken away, a damaged one is restarted and repairs itself."""
    for node, disk in sorted(world.disks.items()):
        if world.atlas.is_beyond_repair(node):
            take_away(world, node)
        elif disk.damaged and not world.replicas[node].is_retired:
            _check_disk(world, node)


def _check_disk(world: World, node: NodeId) -> None:
    """Does as docs/operations/disks.md says. The next start finds the damage of a sealed segment that `raftlog disk
    check` finds, once the .idx beside it is gone; a start that cannot repair it refuses. Every start reads the newest
    segment whole, and its .idx may be the only proof that its last entries were synced."""
    replica, disk = world.replicas[node], world.disks[node]
    if replica.core is not None:
        replica.crash("stopped to check its disk", power=False)
    newest = segment_name(disk.segment_firsts[-1]) if disk.segment_firsts else ""
    for name in [name for name in disk.damaged if name.endswith(".seg") and name != newest]:
        disk.files.carry_out(Delete(f"{name[:-4]}.idx"))
    replica.is_paused = replica.is_held = False
    world.restart(node)
    if disk.refused:
        take_away(world, node)


def flip_newest(world: World, random: Random) -> None:
    """All machines or several lose power, and bits of what one of them wrote last flip before it is back. Mostly soon
    after a node made a batch durable: later on a mark stands behind it."""
    nodes = list(world.replicas) if random.randrange(2) else several(world, random)
    node, until_us, later_us = random.choice(nodes), world.now_us + 1_000_000, random.choice((0, 1_000, 4_000, 60_000))

    def look() -> None:
        replica = world.replicas[node]
        if world.now_us < until_us and (replica.core is None or replica.disk.is_marked or replica.disk.process.is_busy):
            for_a_while(world, LOOK_US, look)
        else:
            for_a_while(world, later_us, hit)

    def hit() -> None:
        if not _may_hit(world, node, "log") or not world.fault("flip newest", nodes, f"on node {node}"):
            return
        for each in nodes:
            if world.replicas[each].core is not None:
                world.replicas[each].crash("power cut", power=True)
            else:  # killed before: what the kernel still had in memory goes now
                world.disks[each].crash(power=True)
        region, what = disk_newest.flip_newest(world.disks[node], random)
        if what:
            world.count(f"damage: newest {region}")
            world.note(node, "damaged", what)
            world.atlas.hit(node, NEWEST_AREAS.get(region, "log"), what)
        elif region:
            world.count("damage: newest, beyond the promises")

    look()


def wipe(world: World, random: Random) -> None:
    """A machine comes back with an empty disk under its old number: it must not take part."""
    node, power = anyone(world, random), random.randrange(2) == 0
    if not _may_hit(world, node, "wipe") or not world.fault("wipe", node):
        return
    _lose(world, node, "wipe", "the disk was wiped", power=power)
    world.disks[node].wipe()


def roll_back(world: World, random: Random) -> None:
    """A machine comes back with a copy of its disk that was made some starts ago: its peers must not believe it.

    They know it by the boot counter that they saw last (docs/formats.md, Undecidable), so it runs only as long as every
    other process has seen a newer one and lives on; then it is taken away. A copy that knows no other voter asks no
    other node, so none is made.
    """
    node, ago_us = anyone(world, random), random.randint(1_000_000, 20_000_000)
    if not _asks_others(world, node):
        return
    image = world.disks[node].copy()

    def bring_back() -> None:
        replica = world.replicas[node]
        boot, peers = image.view.hard_state.boot + 2, [peer for peer in world.replicas.values() if peer is not replica]
        disk = (node, world.disks[node].incarnation)
        if node in world.dials.behind:
            return
        if replica.core is None or any(peer.hellos.met.get(disk, NEVER_MET).boot < boot for peer in peers):
            return  # there are those whom an old copy could deceive
        if not _may_hit(world, node, "roll_back") or not world.fault("roll back", node, f"by {ago_us} us", AROUND_US):
            return
        _lose(world, node, "roll_back", f"rolled back by {ago_us} us", power=True)
        world.disks[node].roll_back(image)
        replica.start()
        # Its own end counts too: with each start its counter comes nearer to what the peers have seen.
        everyone = [replica, *peers]
        lives = [each.life for each in everyone]

        def look() -> None:
            if lives != [each.life for each in everyone] or world.now_us - began_us > AROUND_US:
                take_away(world, node)
            elif not replica.is_retired:
                world.after(LOOK_US, look)

        began_us = world.now_us
        world.after(LOOK_US, look)

    for_a_while(world, ago_us, bring_back)


def restore(world: World, random: Random) -> None:
    """A machine comes back with a copy of its disk that was made while it ran, at any earlier moment, and is started
    until its boot counter is as high as its peers demand. Only peers know that it lost promises.

    They can while the processes that saw its promises live and are reachable (docs/decisions/0017), so it runs only as
    long as that holds, or until it has everything again; else it is taken away.
    """
    node, ago_us = (
        anyone(world, random),
        random.choice((random.randint(20_000, 500_000), random.randint(0, 10_000_000))),
    )
    replica, disk = world.replicas[node], world.disks[node]
    if not _asks_others(world, node) or disk.damaged or disk.process.is_busy:
        return
    image, peers = disk.copy(), Peers(world, node)

    def bring_back() -> None:
        is_there = replica.core is not None and world.replicas[node] is replica and node not in world.dials.behind
        if not (is_there and has_everything(disk) and peers.can_tell()):
            return
        if not _may_hit(world, node, "log") or not world.fault("restore copy", node, f"of {ago_us} us ago", AROUND_US):
            return
        what = f"restored as it was {ago_us} us ago"
        replica.crash(what, power=False)
        peers.forgets()
        put_back(disk, image)
        start_until_taken(world, node)
        watch(world, node, peers, what, "a restored copy has everything again")

    for_a_while(world, ago_us, bring_back)


def format_again(world: World, random: Random) -> None:
    """All processes end, one data folder is lost, and an operator formats it under its old identity. No member is there
    to refuse that, so `raftlog format` makes it: without a vote, until a leader or all voters give it back.

    The power stays on where a disk lies about a sync: it would be a second one that lost promises."""
    node, power = random.choice(world.configuration.voters), random.randrange(2) == 0
    power = power and not any(each.files.lie for each in world.disks.values())
    replica, disk = world.replicas[node], world.disks[node]
    is_there = node not in world.dials.behind and not (replica.corrupted or replica.is_retired)
    if (
        not (is_there and has_everything(disk))
        or not _may_hit(world, node, "log")
        or not world.fault("format again", node)
    ):
        return
    for each in world.replicas.values():
        if each.core is not None:
            each.crash("killed, and a folder is lost", power=power)
    lose_and_format(world, node)
    world.atlas.hit(node, "log", "formatted again under its old identity")

    def look() -> None:
        if disk is world.disks[node] and not disk.view.is_healing:
            world.count("folders formatted again that have their vote")
        elif disk is world.disks[node] and not replica.is_retired:
            world.after(LOOK_US, look)

    world.after(LOOK_US, look)


def lose_and_format(world: World, node: NodeId) -> None:
    """The folder of a node is lost, and made again as `raftlog format` makes one for a log that may be. All nodes are
    down: what no other disk has was on no majority, and cannot be any more."""
    disk = world.disks[node]
    others = [each.view for other, each in world.disks.items() if other != node]
    is_alone = world.configuration.voters == (node,)
    held = frozenset(entry for entry in disk.view.held if is_alone or any(each.has(*entry) for each in others))
    heard = max([each.hard_state.term for each in others], default=0)
    world.witness.rolled_back(node, heard)  # a candidate that counted its vote in a later term would know that term
    disk.format(disk.incarnation, NEW_DISK)
    disk.view.lost(held)


def _asks_others(world: World, node: NodeId) -> bool:
    """Whether it runs, and a copy of its disk would ask other voters before it leads."""
    core = world.replicas[node].core
    return core is not None and all(each.voters != (node,) for _, each in core.state.configurations)


def _lose(world: World, node: NodeId, area: str, what: str, *, power: bool) -> None:
    """That disk is no longer the one that made promises."""
    replica = world.replicas[node]
    if replica.core is not None:
        replica.crash(what, power=power)
    replica.hello = NOBODY_YET
    world.witness.lost(node)
    world.atlas.hit(node, area, what)


def damage(world: World, random: Random, kind: str, how: Callable[[SimDisk, str, Random], Hit | None]) -> None:
    """Bytes at rest change: in a segment, the hard state, a snapshot, the ledger or the index."""
    node, area = anyone(world, random), random.choice(AREAS)
    if not _may_hit(world, node, area) or not world.fault(kind, node, area):
        return
    disk = world.disks[node]
    what = disk.hit(how(disk, area, random))
    if what:
        world.count(f"damage: {area}")
        world.note(node, "damaged", what)
        world.atlas.hit(node, area, what)
        if area in FATAL and random.randrange(2):  # else scrubbing finds it, the next start, or a reader
            for_a_while(world, random.randrange(CHECKED_US), lambda: _look_again(world, node))


def _look_again(world: World, node: NodeId) -> None:
    if world.disks[node].is_hurt and not world.replicas[node].is_retired:
        _check_disk(world, node)


def _may_hit(world: World, node: NodeId, area: str) -> bool:
    return not world.replicas[node].is_retired and world.atlas.may_hit(node, area)
