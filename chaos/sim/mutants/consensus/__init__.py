"""Plants mutants of the consensus: elections, replication, reads, members, snapshots."""
