"""Handles each route of the HTTP API."""
