"""Implements the Spark sink: rows become records or keys."""
