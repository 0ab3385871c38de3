"""Runs the processes of nodes: one, or a whole cluster on this machine."""
