"""Tests of chaos/sim/world."""
