"""Checks what a node may say before and after its disk has it, and which states are right."""
