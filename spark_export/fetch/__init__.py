"""Fetches ranges of the log: from a node over HTTP, or from its sealed files."""
