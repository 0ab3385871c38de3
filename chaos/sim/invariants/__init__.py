"""Checks a world: one file per property, with its paper section; `Witness` feeds them all."""

from raftlog.chaos.sim.invariants.witness import Witness

__all__ = ["Witness"]
