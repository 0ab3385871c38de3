"""Tests of cluster/offline."""
