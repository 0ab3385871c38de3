"""Tests of cluster/disk."""
