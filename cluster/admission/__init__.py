"""Decides which requests a node takes: their senders, grants and quotas, and how many are open, below any protocol."""
