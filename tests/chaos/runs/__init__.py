"""Tests of chaos/runs."""
