"""Tests of cluster/records."""
