"""Decides what one replica does, after the Raft paper: elections, replication, reads, members."""
