"""Tests of cluster/replica/upkeep."""
