"""Tests of raft/wal."""
