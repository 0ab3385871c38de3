"""Links of the simulated network: messages are lost, doubled, replayed, held back and cut, each on its own."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from raftlog.chaos.sim.ground.swarm import LinkQuality, quiet
from raftlog.chaos.sim.network import topologies
from raftlog.chaos.sim.network.network import HELD_MAX, POOL, SLOW_MAX_US, Network

PERFECT = quiet(3).network


class Carried:
    """A network whose arrivals are kept as (delay, parcel)."""

    def __init__(self, quality: LinkQuality = PERFECT, seed: int = 1) -> None:
        self.arrived: list[tuple[int, Any]] = []
        self.network = Network(Random(seed), quality, lambda delay_us, parcel: self.arrived.append((delay_us, parcel)))

    def send(self, count: int, sender: int = 1, to: int = 2) -> None:
        for parcel in range(count):
            self.network.send(sender, to, parcel)

    @property
    def parcels(self) -> list[Any]:
        return [parcel for _, parcel in self.arrived]


def test_a_perfect_link_delivers_everything_once_within_its_delays() -> None:
    """Without trouble nothing is lost and nothing comes twice."""
    carried = Carried()
    carried.send(500)
    assert carried.parcels == list(range(500))
    assert {True} == {PERFECT.delay_min_us <= delay <= PERFECT.delay_max_us for delay, _ in carried.arrived}
    assert carried.network.lost == carried.network.doubled == carried.network.replayed == 0


def test_each_link_has_its_own_share_of_the_loss() -> None:
    """Up to the world's rate, from nothing on; over many links about half of it."""
    rates = []
    for to in range(2, 42):
        carried = Carried(replace(PERFECT, loss=300), seed=to)
        carried.send(2_000, to=to)
        rates.append(carried.network.lost / 2_000)
    assert max(rates) <= 0.34
    assert min(rates) <= 0.03
    assert 0.1 <= sum(rates) / len(rates) <= 0.2


def test_doubles_arrive_twice_and_the_second_may_be_late() -> None:
    """A copy may be overtaken by everything that follows within 400 ms."""
    carried = Carried(replace(PERFECT, duplicate=500), seed=3)
    carried.send(3_000)
    assert sorted(set(carried.parcels)) == list(range(3_000))
    assert len(carried.parcels) == 3_000 + carried.network.doubled
    assert carried.network.doubled > 100
    assert max(delay for delay, _ in carried.arrived) > SLOW_MAX_US // 2


def test_old_parcels_are_replayed_much_later_from_a_bounded_pool() -> None:
    """What comes again was sent before on the same link, some of it hundreds of parcels ago."""
    carried = Carried(replace(PERFECT, replay=500), seed=4)
    ages = []
    for parcel in range(5_000):
        before = len(carried.arrived)
        carried.network.send(1, 2, parcel)
        ages += [parcel - old for _, old in carried.arrived[before:] if old != parcel]
    assert carried.network.replayed == len(ages) > 200
    assert min(ages) > 0
    assert max(ages) > 300
    assert len(carried.network.link(1, 2).pool) <= POOL


def test_replays_stay_on_their_link() -> None:
    """No parcel is ever delivered to a node that it was not sent to."""
    carried = Carried(replace(PERFECT, replay=500, duplicate=200), seed=5)
    for parcel in range(2_000):
        to = 2 + parcel % 2
        before = len(carried.arrived)
        carried.network.send(1, to, (to, parcel))
        assert {to} == {parcel[0] for _, parcel in carried.arrived[before:]}


def test_a_cut_swallows_one_direction_until_every_cut_is_taken_off() -> None:
    """Cuts add up, and the other direction goes on."""
    carried = Carried()
    carried.network.cut(1, 2)
    carried.network.cut(1, 2)
    carried.send(3)
    carried.network.send(2, 1, "back")
    carried.network.heal(1, 2)
    carried.send(3)
    assert carried.network.is_cut(1, 2)
    assert not carried.network.is_cut(2, 1)
    carried.network.heal(1, 2)
    carried.network.send(1, 2, "through")
    assert carried.parcels == ["back", "through"]
    assert carried.network.lost == 6


def test_a_clog_holds_back_and_lets_go_in_a_burst_in_order() -> None:
    """Only messages beyond the bound are lost; all others arrive at once."""
    carried = Carried()
    carried.network.clog(1, 2)
    carried.send(HELD_MAX + 10)
    assert carried.parcels == []
    assert carried.network.lost == 10
    carried.network.unclog(1, 2)
    assert carried.parcels == list(range(HELD_MAX))
    assert {PERFECT.delay_min_us} == {delay for delay, _ in carried.arrived}


def test_what_is_held_back_for_an_ended_process_is_gone() -> None:
    """Its connections ended with it."""
    carried = Carried()
    carried.network.clog(1, 2)
    carried.send(5)
    carried.network.forget(2)
    carried.network.unclog(1, 2)
    assert carried.parcels == []


def test_a_healed_network_is_perfect() -> None:
    """Cuts, clogs, loss, copies and replays end, also for unused links; messages that were held back arrive."""
    carried = Carried(replace(PERFECT, loss=300, duplicate=250, replay=250, slow_message=50), seed=6)
    carried.network.cut(1, 3)
    carried.network.clog(1, 2)
    carried.send(10)
    carried.network.heal_all()
    held = len(carried.parcels)
    carried.send(100)
    carried.send(100, to=3)
    carried.send(100, sender=4, to=1)
    assert 0 < held <= 10
    assert carried.parcels[held:] == [*range(100)] * 3


@pytest.mark.parametrize("nodes", [2, 3, 5, 7])
def test_shapes_cut_what_they_say(nodes: int) -> None:
    """Each shape leaves exactly its own pairs connected."""
    everyone = range(1, nodes + 1)
    links = {(a, b) for a in everyone for b in everyone if a != b}

    def left(cut: topologies.Links) -> set[tuple[int, int]]:
        assert len(set(cut)) == len(cut)
        assert set(cut) <= links
        return links - set(cut)

    assert left(topologies.alone(everyone, 1)) == {(a, b) for a, b in links if 1 not in {a, b}}
    assert left(topologies.inbound(everyone, 1)) == {(a, b) for a, b in links if b != 1}
    assert left(topologies.outbound(everyone, 1)) == {(a, b) for a, b in links if a != 1}
    assert left(topologies.hub(everyone, 1)) == {(a, b) for a, b in links if 1 in {a, b}}
    assert left(topologies.halves(everyone, [1])) == left(topologies.alone(everyone, 1))
    if nodes >= 3:
        assert {b for a, b in left(topologies.ring(everyone)) if a == 1} == {2, nodes}
        seen = left(topologies.bridge(everyone, 2))
        assert {(a, b) for a, b in seen if 2 in {a, b}} == {(a, b) for a, b in links if 2 in {a, b}}
        assert (1, nodes) not in seen


def test_howards_topology() -> None:
    """1-2-3 connected, 4 only to 2, 5 only to 3."""
    kept = {(a, b) for a in range(1, 6) for b in range(1, 6) if a != b} - set(topologies.howard(range(1, 6)))
    pairs = [(1, 2), (1, 3), (2, 3), (2, 4), (3, 5)]
    assert kept == {pair for a, b in pairs for pair in ((a, b), (b, a))}
