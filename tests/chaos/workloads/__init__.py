"""Tests of chaos/workloads."""
