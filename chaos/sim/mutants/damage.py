"""Mistakes of a running node about damage in its own files."""

from __future__ import annotations

from typing import Final

from chaos.sim.mutants.mutant import Edit, Mutant

MUTANTS: Final = (
    Mutant(
        name="scrubbing_skips_sealed_segments",
        number=0,
        pitfall=64,
        title="scrubbing reads snapshots alone: damage in sealed segments gathers until somebody asks for it",
        source="this project; Protocol-Aware Recovery",
        story="tests/sim/test_damage_while_running.py::test_damage_is_found_and_mended_while_the_others_go_on",
        edits=(
            Edit(
                "cluster.scrubbing:Looker.sealed",
                "return [pair for pair in pairs if pair[0].last.index <= self._journal.indexed]",
                "return [pair for pair in pairs if pair[0].last.index < 0]",
            ),
        ),
    ),
    Mutant(
        name="ends_for_damage_while_others_are_ill",
        number=0,
        pitfall=66,
        title="a node ends for damage as soon as a majority commits, though another is down or heals",
        source="this project: docs/decisions/0011",
        story="tests/sim/test_damage_while_running.py::test_nobody_ends_for_damage_while_another_is_ill",
        edits=(
            Edit(
                "cluster.damage:are_others_well",
                "if not points.is_reported(configuration, asked.last):\n        return None\n    ",
                "",
            ),
            Edit("cluster.damage:are_others_well", " and links_up()", ""),
        ),
    ),
)
