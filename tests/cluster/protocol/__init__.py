"""Tests of cluster/protocol."""
