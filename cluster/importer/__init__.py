"""Imports files into the log, each line exactly once."""
