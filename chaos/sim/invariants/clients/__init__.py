"""Checks what clients are answered."""
