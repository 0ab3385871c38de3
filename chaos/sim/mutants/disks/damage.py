"""Mistakes of a running node about damage in its own files."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Edit, Mutant

MUTANTS: Final = (
    Mutant(
        name="scrubbing_skips_sealed_segments",
        pitfall=64,
        title="scrubbing reads snapshots alone: damage in sealed segments gathers until somebody asks for it",
        source="this project; Protocol-Aware Recovery",
        story="tests/sim/disk/test_damage_while_running.py::test_damage_is_found_and_mended_while_the_others_go_on",
        target="raftlog.cluster.files.scrub:Looker.sealed",
        old="return [pair for pair in pairs if pair[0].last.index <= self._journal.indexed]",
        new="return [pair for pair in pairs if pair[0].last.index < 0]",
    ),
    Mutant(
        name="scrubbing_pauses_by_the_wall_clock",
        pitfall=64,
        title="a slice of scrubbing is followed by twenty times its wall time: on a busy machine a round takes minutes",
        source="this project: a test of a damaged snapshot that waited for two rounds",
        story="tests/cluster/disk/test_scrub.py::test_the_pause_follows_from_the_time_on_a_processor",
        target="raftlog.cluster.disk.scrubber:Scrub._sliced",
        old="began, read, seconds = thread_s(),",
        new="began, read, seconds = monotonic(),",
        also=(
            Edit("raftlog.cluster.disk.scrubber:Scrub._sliced", "and thread_s() < until", "and monotonic() < until"),
            Edit(
                "raftlog.cluster.disk.scrubber:Scrub._sliced", "took = thread_s() - began", "took = monotonic() - began"
            ),
        ),
    ),
    Mutant(
        name="snapshot_saved_for_an_older_one",
        pitfall=64,
        title="a snapshot that cannot be sent makes the leader save its state again, although a newer one is whole",
        source="this project",
        story="tests/cluster/replica/upkeep/test_snapshots.py::test_an_older_snapshot_that_cannot_be_sent_makes_no_new_one",
        target="raftlog.cluster.replica.upkeep.snapshots:_read",
        old="if fetch.index == snapshots.index:",
        new="if True:",
    ),
    Mutant(
        name="two_damaged_nodes_end_together",
        pitfall=66,
        title="a node that asks whether the others are well is itself reported well to another that asks",
        source="this project: docs/decisions/0011",
        story=(
            "tests/cluster/replica/upkeep/test_damage.py::test_of_two_damaged_nodes_that_look_at_once_at_most_one_ends"
        ),
        target="raftlog.cluster.protocol.digest_points:DigestPoints.reports",
        old="if self.is_healing or self.is_ending",
        new="if self.is_healing",
    ),
    Mutant(
        name="ends_for_damage_while_others_are_ill",
        pitfall=66,
        title="a node ends for damage as soon as a majority commits, though another is down or heals",
        source="this project: docs/decisions/0011",
        story="tests/sim/disk/test_damage_while_running.py::test_nobody_ends_for_damage_while_another_is_ill",
        target="raftlog.cluster.protocol.damage_policy:are_others_well",
        old="if not points.is_reported(configuration, asked.last):\n        return None\n    ",
        new="",
        also=(Edit("raftlog.cluster.protocol.damage_policy:are_others_well", " and links_up()", ""),),
    ),
)
