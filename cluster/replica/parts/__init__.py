"""Holds the parts of a replica that serve requests, members and peers."""
