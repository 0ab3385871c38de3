"""Tests of chaos/sim/ground."""
