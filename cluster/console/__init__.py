"""Holds the pages of the console: what a node serves to a browser."""
