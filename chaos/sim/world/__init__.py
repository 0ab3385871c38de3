"""Joins nodes, clients and faults into one seeded world, watched at every step."""
