"""Tests of chaos: the harness and its checkers."""
