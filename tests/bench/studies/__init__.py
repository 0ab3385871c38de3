"""Tests of the bench commands that study one question each (bench/studies)."""
