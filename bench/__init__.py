"""Benchmarks of raftlog beside its peers, with the defaults it ships with."""
