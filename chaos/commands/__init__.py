"""Defines the commands `raftlog chaos …`."""
