"""The deterministic simulator: whole clusters in one process under a seeded clock, network and disk."""
