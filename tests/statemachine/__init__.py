"""Tests of the state machine: one file per module, a naive twin, and the pitfalls that concern it."""
