"""Serves the HTTP API of a node."""
