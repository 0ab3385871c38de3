"""Runs a node's disk: the threads that write, read, sync and scrub, as the event loop sees them."""
