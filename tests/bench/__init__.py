"""Tests of the bench's own instruments: a wrong ruler is worse than none."""
