"""Tests of chaos/sim/runs."""
