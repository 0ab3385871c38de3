"""Loads a cluster, and records what clients and consumers were answered."""
