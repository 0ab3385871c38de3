"""Carries messages and frames between the nodes of a world."""
