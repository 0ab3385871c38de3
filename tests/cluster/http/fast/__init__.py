"""Tests of cluster/http/fast."""
