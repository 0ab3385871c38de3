"""Tests of cluster/runtime."""
