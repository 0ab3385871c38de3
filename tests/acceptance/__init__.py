"""Acceptance tests: the whole service as processes, broken from outside, judged by its clients' answers."""
