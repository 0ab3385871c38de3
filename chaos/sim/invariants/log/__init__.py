"""Checks the log: which entries it holds, that they do not change, and which are applied."""
