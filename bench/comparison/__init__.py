"""Compares the contenders: axes, rounds, goals and the report."""
