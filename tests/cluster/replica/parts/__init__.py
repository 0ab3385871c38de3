"""Tests of cluster/replica/parts."""
