"""Tests of raft/papers."""
