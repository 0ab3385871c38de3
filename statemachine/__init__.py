"""Gives the log its meaning: a pure, deterministic key-value state machine over committed entries."""
