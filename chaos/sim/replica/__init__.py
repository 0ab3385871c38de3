"""Drives the real core and state machine of one simulated node."""
