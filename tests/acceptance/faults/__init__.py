"""Acceptance under one fault: a killed, paused or cut-off node, and bytes that are no request."""
