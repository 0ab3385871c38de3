"""What must hold in a world: one file per property, with its paper section; `Witness` feeds them all."""

from chaos.sim.invariants.witness import Witness

__all__ = ["Witness"]
