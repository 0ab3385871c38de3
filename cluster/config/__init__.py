"""Reads what a person configures: the settings of a node and the cluster file."""
