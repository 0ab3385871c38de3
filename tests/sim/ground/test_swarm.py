"""What worlds are drawn: every seed another one, each kind of fault in a share of them, and enough of all together."""

from random import Random
from statistics import median

from raftlog.chaos.sim.ground.swarm import BEHIND, FORGETTING, FORGING, GONE, KINDS, MINUTE_US, Swarm, draw, quiet
from raftlog.chaos.sim.nemesis import FAULTS

WORLDS = [draw(Random(f"{seed} swarm")) for seed in range(400)]


def test_equal_seeds_give_equal_worlds() -> None:
    """Nothing but the seed is drawn from."""
    assert [draw(Random(f"{seed} swarm")) for seed in range(20)] == WORLDS[:20]
    assert len({str(swarm) for swarm in WORLDS}) == len(WORLDS)


def test_all_sizes_of_a_cluster_are_drawn() -> None:
    """One to seven nodes."""
    assert {swarm.nodes for swarm in WORLDS} == set(range(1, 8))


def test_each_kind_of_fault_is_in_some_worlds_and_left_out_of_others() -> None:
    """A fault that is in every world hides the others; one that is in no world proves nothing."""
    for kind in {*KINDS, *dict(FORGETTING), *dict(FORGING), *dict(BEHIND)} - {GONE}:
        share = sum(kind in dict(swarm.faults) for swarm in WORLDS) / len(WORLDS)
        assert 0.02 < share < 0.9, (kind, share)


def test_every_kind_is_known_to_the_nemesis() -> None:
    """The table of kinds and the functions that do them name the same."""
    assert {*KINDS, *dict(FORGETTING), *dict(FORGING), *dict(BEHIND)} - {GONE} == set(FAULTS)


def test_the_median_world_has_more_than_ten_faults_a_minute_and_many_have_five_kinds() -> None:
    """Counted as they are asked for: some are not possible when their time comes."""
    a_minute = [sum(MINUTE_US / every_us for _, every_us in swarm.faults) for swarm in WORLDS]
    assert median(a_minute) >= 20
    assert sum(len(swarm.faults) >= 5 for swarm in WORLDS) >= len(WORLDS) // 2


def test_rates_are_within_what_the_issue_names() -> None:
    """Loss up to 30 %, duplicates and replays together up to 50 %, about 400 operations a minute."""
    assert max(swarm.network.loss for swarm in WORLDS) > 200
    assert all(each.network.loss <= 300 and each.network.duplicate + each.network.replay <= 500 for each in WORLDS)
    assert max(swarm.network.duplicate + swarm.network.replay for swarm in WORLDS) > 300
    rates = [swarm.clients * MINUTE_US / swarm.client_every_us for swarm in WORLDS]
    assert all(300 <= rate <= 601 for rate in rates)


def test_families_are_left_out() -> None:
    """There are worlds without any loss, without crashes, without cuts, without disk faults."""

    def without(swarm: Swarm, *kinds: str) -> bool:
        return not any(kind in dict(swarm.faults) for kind in kinds)

    for kinds in [
        ("kill", "power cut", "kill all"),
        ("cut link", "cut node", "cut halves"),
        ("full disk", "fail sync"),
    ]:
        assert any(without(swarm, *kinds) for swarm in WORLDS)
        assert not all(without(swarm, *kinds) for swarm in WORLDS)
    assert any(swarm.network.loss == 0 for swarm in WORLDS)


def test_a_quiet_world_has_no_trouble() -> None:
    """What healthy clusters are tested in."""
    swarm = quiet(5)
    assert swarm.nodes == 5
    assert swarm.faults == ()
    assert swarm.network.loss == swarm.network.duplicate == swarm.network.replay == 0
    assert swarm.crash_at_step == swarm.drift == 0
