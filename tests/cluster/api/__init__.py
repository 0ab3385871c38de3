"""Tests of cluster/api."""
