"""Tests of cluster/config."""
