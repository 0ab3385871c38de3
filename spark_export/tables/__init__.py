"""Gives other programs the records as tables: Arrow batches, and SQL by DuckDB."""
