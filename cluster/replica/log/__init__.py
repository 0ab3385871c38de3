"""Applies the log, and reads it: from memory, the disk or another node."""
