"""Tests of chaos/shim."""
