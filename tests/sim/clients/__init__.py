"""Tests of chaos/sim/clients."""
