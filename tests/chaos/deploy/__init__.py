"""Tests of chaos/deploy."""
