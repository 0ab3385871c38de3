"""Holds what all commands share: options, the client, output, and the last cluster."""
