"""Runs one seed: faults, healing, and the checks after them."""
