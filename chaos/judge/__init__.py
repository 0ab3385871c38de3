"""Judges histories: models, checkers and their verdicts."""
