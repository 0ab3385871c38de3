"""Holds a run of chaos, or a seed of the simulator, as a folder: its result, its histories, and its page."""
