"""Each fault of the nemesis alone: it happens, it is recorded, it ends, and the cluster goes on; or it is left out."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from raftlog.chaos import sim
from raftlog.chaos.sim.nemesis import FAULTS, heal_disks, promises
from raftlog.chaos.sim.nemesis.promises import has_everything
from raftlog.chaos.sim.seed.run import run_seed
from raftlog.chaos.sim.world.coverage import COUNTED, SOMETIMES
from raftlog.chaos.sim.world.world import World, quiet

# what needs more to happen than one kind of fault alone
NEEDS: dict[str, tuple[tuple[str, int], ...]] = {
    "roll back": (("kill", 2_000_000),),
    "promote": (("add", 2_000_000),),
    "removed key": (("replace", 2_000_000),),
}

# what a fault of that kind leaves in the stats, beside itself; any of them
LEAVES: dict[str, tuple[str, ...]] = {
    "cut link": ("messages lost",),
    "cut node": ("messages lost",),
    "cut halves": ("messages lost",),
    "cut shape": ("messages lost",),
    "flap": ("messages lost",),
    "kill": ("crashes",),
    "power cut": ("crashes",),
    "kill several": ("crashes",),
    "kill all": ("sometimes: all nodes down",),
    "power cut all": ("sometimes: all nodes down",),
    "restart storm": ("crashes",),
    "fail sync": ("sometimes: a node fences itself",),
    "fail write": ("sometimes: a node fences itself",),
    "full disk": ("sometimes: a full disk waits for room", "sometimes: no room for a snapshot"),
    "wipe": ("sometimes: a node stops loudly",),
    "roll back": ("hellos refused",),
    "restore copy": ("sometimes: a restored copy has everything again",),
    "refused copy": ("refused copies that some peers took",),
    "flip bit": ("damage: log", "damage: idx", "damage: hard_state", "damage: ledger", "damage: history"),
    "flip newest": ("damage: newest data", "damage: newest header"),
    "misdirect": ("damage: log", "damage: idx", "damage: ledger", "damage: history", "damage: snapshot"),
    "stale block": ("damage: log", "damage: idx", "damage: ledger", "damage: history", "damage: hard_state"),
    "transfer": ("transfers",),
    "add": ("changes of members",),
    "promote": ("changes of members",),
    "remove": ("changes of members",),
    "replace": ("changes of members",),
    "reset link": ("links reset",),
    "break links": ("sometimes: a leader outlived a break of its links",),
    "pause": ("pauses",),
    "corrupt state": ("sometimes: a wrong state was found out",),
    "pause several": ("pauses",),
    "removed key": ("strikes of a removed node",),
    "forged hello": ("forged hellos",),
    "format again": ("folders formatted again that have their vote",),
    "strand follower": ("sometimes: a trim passed a stopped follower",),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_world_with_one_kind_of_fault(kind: str) -> None:
    """It is asked for by its name and number, does what it is for, and every property holds; once it is over the
    cluster agrees and goes on."""
    every = ((kind, 700_000), *NEEDS.get(kind, ()))
    swarm = replace(quiet(3), faults=every, compact_every_us=1_000_000, down_max_us=300_000)
    outcome = run_seed(1, 25 if kind == "roll back" else 8, swarm=swarm)
    assert {fault.kind for fault in outcome.faults} <= {name for name, _ in every}
    assert [fault.number for fault in outcome.faults] == sorted({fault.number for fault in outcome.faults})
    assert outcome.stats[f"fault: {kind}"] >= 1
    assert not LEAVES.get(kind) or any(outcome.stats.get(name) for name in LEAVES[kind]), outcome.stats
    assert outcome.stats["healed runs"] == 1


def test_a_fault_that_is_skipped_does_not_happen() -> None:
    """Shrinking leaves faults out by their number: the others keep theirs, and their times."""
    swarm = replace(quiet(3), faults=(("cut link", 2_000_000), ("clock drift", 2_000_000)))
    whole = run_seed(4, 20, swarm=swarm).faults
    left = run_seed(4, 20, swarm=swarm, skip=frozenset({whole[0].number, whole[3].number})).faults
    assert len(whole) > 8
    assert [(fault.number, fault.now_us) for fault in left] == [
        (fault.number, fault.now_us) for fault in whole if fault not in (whole[0], whole[3])
    ]


def test_with_everything_skipped_a_world_is_quiet() -> None:
    """No crash, no cut, no damage: one leader all the time (a seed whose healing holds no node down at first)."""
    swarm = replace(quiet(3), faults=tuple((kind, 1_000_000) for kind in FAULTS))
    outcome = run_seed(1, 10, swarm=swarm, skip=frozenset(range(1_000)))
    assert outcome.faults == ()
    assert outcome.stats["leaders"] == 1
    assert "crashes" not in outcome.stats


def test_what_one_kind_draws_changes_nothing_for_another() -> None:
    """Each kind has its own source of chance: the times of its faults are the same with others beside it."""

    def times(*kinds: str) -> list[int]:
        swarm = replace(quiet(3), faults=tuple((kind, 2_000_000) for kind in kinds))
        return [fault.now_us for fault in run_seed(3, 20, swarm=swarm).faults if fault.kind == "clock jump"]

    assert times("clock jump") == times("clock jump", "pause", "reset link") != []


def test_faults_end_by_themselves() -> None:
    """A cut, a clog, a slow and a full disk, a pause: after their time everything is as before."""
    swarm = quiet(3)
    times = replace(swarm.fault_times, cut_max_us=500_000, disk_max_us=500_000)
    swarm = replace(swarm, fault_times=times, pause_max_us=500_000)
    world = World(1, swarm)
    world.start()
    world.run_until(3_000_000)
    random = Random(1)
    for kind in ("cut node", "clog", "flap", "slow disk", "full disk", "pause"):
        FAULTS[kind](world, random)
    assert len(world.faults) == 6
    world.run_until(world.now_us + 12_000_000)
    pairs = [(a, b) for a in world.replicas for b in world.replicas if a != b]
    assert not any(world.network.is_cut(*pair) or world.network.link(*pair).clogs for pair in pairs)
    assert not any(disk.files.is_full or disk.slow_us for disk in world.disks.values())
    assert not any(replica.is_paused for replica in world.replicas.values())
    assert world.has_agreed(1)


def test_healing_ends_what_would_last() -> None:
    """Disks have room and their own pace, and nodes beyond repair are taken away."""
    world = World(1, quiet(3))
    world.start()
    world.run_until(2_000_000)
    world.disks[1].files.is_full, world.disks[2].slow_us = True, 5_000
    world.replicas[3].crash("wiped", power=False)
    world.witness.lost(3)
    world.disks[3].wipe()
    world.atlas.hit(3, "wipe", "for this test")
    heal_disks(world)
    assert (world.disks[1].files.is_full, world.disks[2].slow_us) == (False, 0)
    world.restart(3)
    assert world.replicas[3].core is None


def test_a_disk_that_is_damaged_and_then_wiped_has_acknowledged_what_it_held_before_both() -> None:
    """Else a committed entry that it held and one intact disk holds would seem to be lost."""
    world = World(1, quiet(3))
    world.start()
    world.run_until(2_000_000)
    view = world.disks[3].view
    damaged = frozenset({(index, term) for index, term in view.held if index == view.durable_last})
    assert damaged
    view.lost(frozenset({(99, 9)}))
    world.witness.lost(3)
    assert world.witness.known.lost[3] >= {(99, 9)} | damaged


def test_a_folder_that_is_lost_and_a_disk_that_lies_do_not_lose_promises_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All processes end when a folder is lost: a power cut would take what the disk that lied had promised, too."""
    world = World(1, quiet(3))
    world.start()
    world.run_until(2_000_000)
    random, drawn = Random(1), iter(("log", 3_000_000, 2))  # a sync of the log, a cut after 3 s, the folder of node 2
    monkeypatch.setattr(random, "choice", lambda _: next(drawn))
    monkeypatch.setattr(random, "randrange", lambda _: 0)  # by a power cut
    monkeypatch.setattr(promises, "anyone", lambda *_: 1)
    FAULTS["lying sync"](world, random)
    world.write()
    world.run_until(2_050_000)
    lie = world.disks[1].files.lie
    assert lie is not None
    assert lie.is_under_way
    FAULTS["format again"](world, random)
    assert world.disks[2].view.is_healing
    assert has_everything(world.disks[1])


def test_the_list_of_states() -> None:
    """What the world counts leads to states that are listed."""
    assert set(COUNTED.values()) <= set(SOMETIMES)


def test_every_state_is_reported_by_some_code() -> None:
    """A state that no code reports would be missing in every run, and look like a state that no world reached."""
    sources = Counter[str]()
    for file in Path(sim.__path__[0]).rglob("*.py"):
        text = file.read_text()
        sources.update({name: text.count(f'"{name}"') for name in SOMETIMES})
    assert [name for name in SOMETIMES if sources[name] < 2] == []  # one is in the list itself


def test_fixed_worlds_reach_most_states() -> None:
    """Every name that a world calls is listed, and eight worlds of twenty seconds come to half of all states."""
    total: Counter[str] = Counter()
    for seed in range(300, 308):
        total.update(run_seed(seed, 20).stats)
    called = {name.removeprefix("sometimes: ") for name in total if name.startswith("sometimes: ")}
    assert called <= set(SOMETIMES), called - set(SOMETIMES)
    missing = set(SOMETIMES) - called
    assert len(missing) <= len(SOMETIMES) // 2, missing
