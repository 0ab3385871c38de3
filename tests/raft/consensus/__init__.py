"""Tests of raft/consensus."""
