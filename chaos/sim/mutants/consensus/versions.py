"""Mutants of the cluster version: when it rises, and what apply takes it from."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Mutant

MUTANTS: Final = (
    Mutant(
        name="version_raised_by_a_majority",
        pitfall=77,
        title="the cluster version rises once a majority knows it; the other nodes get entries that they cannot apply",
        source="etcd #13654; LogCabin's version gate",
        target="raftlog.raft.versions:known_to_all",
        old="    newest = knows\n",
        new=(
            "    known = sorted([knows, *(its for _, its in said.values())])\n"
            "    return known[-min(len(known), len(configuration.voters) // 2 + 1)]\n"
            "    newest = knows\n"
        ),
    ),
    Mutant(
        name="version_missing_from_the_snapshot",
        pitfall=77,
        title="a state restored from a snapshot is applied to by the rules of version 1",
        source="etcd #13654",
        target="raftlog.statemachine.machine:StateMachine.of",
        old="machine.oldest, machine.version = state.oldest, state.version",
        new="machine.oldest = state.oldest",
    ),
)
