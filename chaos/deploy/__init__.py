"""Starts a cluster of real processes behind proxies, and ends it."""
