"""Keeps other stores up to date from the log: databases, caches and search indexes."""
