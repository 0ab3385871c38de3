"""Simulates a node's disk, and the damage that a disk can do."""
