"""Simulates what surrounds the nodes: clocks, chance, network, and the trace of it all."""
