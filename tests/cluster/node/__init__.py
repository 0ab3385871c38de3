"""Tests of cluster/node."""
