"""Mutants of what a leader does about full and slow disks, its own and those of the others."""

from __future__ import annotations

from typing import Final

from chaos.sim.mutants.mutant import Edit, Mutant

SOURCE: Final = "docs/decisions/0018"
PITFALL: Final = 72
"""Hung disk, live network: the nearest one."""

MUTANTS: Final = (
    Mutant(
        name="full_leader_stays",
        number=0,
        pitfall=PITFALL,
        title="a leader whose disk is full goes on leading, and refuses every write",
        source=SOURCE,
        edits=(Edit("cluster.disk_reports:Disks.handover", "self.best() if self.has_room else None", "None"),),
    ),
    Mutant(
        name="slow_leader_stays",
        number=0,
        pitfall=PITFALL,
        title="a leader whose disk is much slower than the others' goes on leading",
        source=SOURCE,
        edits=(Edit("cluster.disk_reports:Disks.fast", "if self.own.sync_us < rules.slow_us:", "if rules:"),),
    ),
    Mutant(
        name="full_disk_chosen_to_lead",
        number=0,
        pitfall=PITFALL,
        title="a full leader hands over to a voter whose disk is full too",
        source=SOURCE,
        edits=(Edit("cluster.disk_reports:Disks.best", "and not self.is_full(each.node)", "and each.node"),),
        story="tests/cluster/test_disk_reports.py::test_a_full_follower_that_is_the_most_caught_up_is_no_target",
    ),
    Mutant(
        name="reserves_of_followers_filled",
        number=0,
        pitfall=PITFALL,
        title="a leader with room sends entries to full followers until their reserves are used up",
        source=SOURCE,
        edits=(Edit("cluster.disk_reports:Disks.holds", "if not full or not self.has_room:", "if full or not full:"),),
    ),
    Mutant(
        name="hand_overs_without_a_pause",
        number=0,
        pitfall=PITFALL,
        title="nothing bounds how often a leader hands over for its disk",
        source=SOURCE,
        edits=(
            Edit(
                "cluster.disk_reports:_allowed",
                "if to is None or (why in last_ms and now_ms - last_ms[why] < pause_ms):",
                "if to is None:",
            ),
        ),
        story="tests/cluster/test_disk_reports.py::test_there_is_a_pause_between_two_hand_overs",
    ),
)
