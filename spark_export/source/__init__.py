"""Implements the Spark data source: batch reads and streaming queries."""
