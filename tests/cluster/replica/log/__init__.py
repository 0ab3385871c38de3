"""Tests of cluster/replica/log."""
