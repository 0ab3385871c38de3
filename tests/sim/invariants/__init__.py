"""Tests of chaos/sim/invariants."""
