"""Measures how fast Spark reads the log."""
