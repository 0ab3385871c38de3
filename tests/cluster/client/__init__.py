"""Tests of cluster/client."""
