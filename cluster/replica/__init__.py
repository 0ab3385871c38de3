"""Runs one Raft group: the core, its state machine, and what both need."""
