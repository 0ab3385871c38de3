"""Plants mutants of the code around the consensus: the replica, connections, HTTP answers."""
