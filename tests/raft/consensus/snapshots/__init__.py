"""Tests of snapshots over the wire."""
