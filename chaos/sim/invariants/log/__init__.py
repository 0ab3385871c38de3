"""Checks the log: what it holds, that it does not change, and what is applied from it."""
