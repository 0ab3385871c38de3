"""Measures and records: figures, the machine, conditions, processes."""
