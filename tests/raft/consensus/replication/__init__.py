"""Tests of replication: entries, acknowledgements, the flow to one follower."""
