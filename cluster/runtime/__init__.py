"""Gives every other room time, log lines and metrics."""
