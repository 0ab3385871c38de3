"""Mutants whose feature is not there yet: listed, so that nobody forgets them."""

from __future__ import annotations

from typing import Final

from chaos.sim.mutants.mutant import Mutant

MUTANTS: Final = (
    Mutant(
        name="leader_is_always_right",
        number=29,
        title="replicas take over the leader's digest when it is the leader that is damaged",
        source="NATS #7556",
        waits_for="digest points in the log",
    ),
)
