"""Runs faults against a cluster, judges the outcome, and keeps it."""
