"""The goals are judged by the fastest peer, and never on figures that say nothing."""

import msgspec

from bench.comparison.goals import Goal, judge
from bench.instruments.conditions import Conditions
from bench.instruments.figures import Figure
from bench.instruments.machine import Disk
from bench.loads.followers import Delivery
from tests.bench.test_figures import figure

DELIVERY = Delivery(1_000, 8_000, 8_000_000, 0, 0, 20, 90, 120, 1.0)


def goal(name: str, figures: list[Figure], *, unfit: str = "", delivery: Delivery | None = None) -> Goal:
    """The one of that name."""
    return next(each for each in judge(figures, delivery, unfit=unfit) if each.what == name)


GATEWAY = "single write, c=64, beside etcd's gateway"
OURS = figure("raftlog", [500.0, 500.0, 500.0], 1.0)
OLD = figure("etcd 3.4.23 gateway", [90.0, 90.0, 90.0])
NEW = figure("etcd 3.7.3 gateway", [110.0, 110.0, 110.0])


def test_the_faster_of_two_versions_of_a_peer_counts() -> None:
    """5.5 times the old one is not enough when the new one is faster."""
    met = goal(GATEWAY, [OURS, OLD])
    assert (met.measured, met.is_met) == (5.56, True)
    missed = goal(GATEWAY, [OURS, OLD, NEW])
    assert (missed.measured, missed.is_met) == (4.55, False)


def test_a_busy_machine_and_noisy_rounds_judge_nothing() -> None:
    """Then the goal is open, with the reason."""
    seen = Conditions(Disk("ext4", 1, 1.0, 1.0), busy_before=0.5)
    assert goal(GATEWAY, [OURS, OLD], unfit=seen.unfit).note == "the machine was busy"
    noisy = figure("etcd 3.4.23 gateway", [90.0, 20.0, 90.0])
    found = goal(GATEWAY, [OURS, noisy])
    assert found.is_met is None
    assert found.note.startswith("noisy")
    disturbed = msgspec.structs.replace(OLD, others=0.5)
    assert goal(GATEWAY, [OURS, disturbed]).is_met is None


def test_an_interpreter_without_pgo_judges_no_goal() -> None:
    """Users have faster builds of Python; so the run says how its interpreter was built, and judges nothing."""
    seen = Conditions(Disk("ext4", 1, 1.0, 1.0), busy_before=0.0, is_optimised=False)
    assert goal(GATEWAY, [OURS, OLD], unfit=seen.unfit).note == "Python was built without PGO"
    assert msgspec.structs.replace(seen, is_optimised=True).unfit == ""


def test_answers_that_are_failures_judge_no_goal() -> None:
    """A node with a full disk refused all bulk appends, fast, and the goal was met."""
    runs = [msgspec.structs.replace(run, bad=run.requests // 2) for run in OURS.runs]
    refusing = msgspec.structs.replace(OURS, runs=runs)
    found = goal(GATEWAY, [refusing, OLD])
    assert (found.is_met, found.measured) == (None, None)
    assert found.note.endswith("answers were no success")
    bulk = figure("raftlog JSON", [9e6] * 3, count=4, load="bulk append of 100")
    refused = msgspec.structs.replace(bulk, runs=[msgspec.structs.replace(run, bad=run.requests) for run in bulk.runs])
    assert goal("bulk append of 100, c=4", [bulk]).is_met is True
    assert goal("bulk append of 100, c=4", [refused]).is_met is None


def test_a_goal_without_a_figure_says_so() -> None:
    """A part that was left out is no failure and no success."""
    assert goal(GATEWAY, [OURS]).note == "not measured in this run"
    assert all(each.is_met is None for each in judge([], None, unfit=""))


def test_a_small_p99_is_good() -> None:
    """A fifth of the gateway's is met, half is not."""
    name = "single write, c=64, p99 beside etcd's gateway"
    assert goal(name, [OURS, OLD]).is_met is True
    slow = figure("raftlog", [500.0, 500.0, 500.0], 2.5)
    assert goal(name, [slow, OLD]).is_met is False


def test_commits_need_only_beat_nats_without_fsync() -> None:
    """`sync always` is slower, and so no yardstick for being ahead."""
    ours = figure("raftlog", [150.0], count=256, load="commit in process")
    unsynced = figure("NATS 2.15.2", [200.0], count=256, load="commit in process")
    always = figure("NATS 2.15.2 sync always", [50.0], count=256, load="commit in process")
    name = "commits with fsync, 256 in flight, beside NATS without"
    assert goal(name, [ours, always]).is_met is None
    assert goal(name, [ours, unsynced, always]).is_met is False


def test_a_lost_record_is_a_miss_on_any_machine() -> None:
    """Delivery is no question of speed; its time is."""
    lost = msgspec.structs.replace(DELIVERY, missing=1)
    assert goal("followers: every record delivered", [], delivery=lost, unfit="the machine was busy").is_met is False
    assert goal("followers: every record delivered", [], delivery=DELIVERY, unfit="the machine was busy").is_met is True
    assert goal("followers: p99 of delivery", [], delivery=DELIVERY, unfit="the machine was busy").is_met is None
    assert goal("followers: p99 of delivery", [], delivery=DELIVERY).is_met is True
