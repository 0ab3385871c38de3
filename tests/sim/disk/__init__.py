"""Tests of chaos/sim/disk."""
