"""Acceptance: the whole service as processes, broken from outside, judged by what its clients were told."""
