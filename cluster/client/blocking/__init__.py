"""Carries requests out for programs without an event loop."""
