"""Finds Java and Spark, and starts a session."""
