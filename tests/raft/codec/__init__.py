"""Tests of raft/codec."""
