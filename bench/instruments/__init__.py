"""Measures and records: figures, the machine, conditions, plots, processes."""
