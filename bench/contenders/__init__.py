"""Starts each server that takes part: raftlog and its peers."""
