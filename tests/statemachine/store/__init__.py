"""Tests of the store and its table of keys."""
