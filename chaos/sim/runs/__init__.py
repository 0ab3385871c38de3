"""Runs many seeds, shrinks those that fail, and reports."""
