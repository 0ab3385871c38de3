"""Turns checked bytes of the log into Arrow columns."""
