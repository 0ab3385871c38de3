"""Tests of chaos/nemesis."""
