"""Tests of cluster/cli."""
