"""Tests of the simulator: short worlds, and that it sees what it is there to see."""
