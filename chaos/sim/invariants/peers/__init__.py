"""Checks what nodes send each other and believe of each other."""
