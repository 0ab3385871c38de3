"""Defines the errors of a simulated disk: failed, full, refused."""

from __future__ import annotations


class DiskFailed(Exception):
    """A write or sync failed: this process never writes again (the server's DiskFenced)."""


class DiskFull(Exception):
    """There is no room; no byte of an entry was written. The same batch may be carried out again (NoSpace)."""


class DiskRefused(Exception):
    """The folder cannot be opened: the node stops loudly. The message names the file and the index."""
