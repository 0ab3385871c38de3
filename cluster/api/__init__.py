"""Defines the public API: requests, answers, errors, and the description in openapi.yaml."""
