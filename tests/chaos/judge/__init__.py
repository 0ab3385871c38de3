"""Tests of chaos/judge."""
