"""Decides what happens to the files of the log: appends, cuts, snapshots, recovery and repair."""
