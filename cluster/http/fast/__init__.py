"""Serves the hot routes from the socket's bytes, without an HTTP library."""
