"""Connects a node with its peers."""
