"""Tests of cluster/files."""
