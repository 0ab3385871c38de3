"""Defines why a node does not start: the sentence for its operator, and the exit code of its process."""

from __future__ import annotations

import errno

from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.files.errors import FolderReadOnly, FormatUnknown, NoSpace


class StartError(Exception):
    """The node cannot start. The message says why and what to do; `code` is the exit code of its process."""

    def __init__(self, code: NodeExit, message: str) -> None:
        super().__init__(message)
        self.code = code


def not_listening(key: str, address: str, error: OSError) -> StartError:
    """The node cannot listen at the address of that setting."""
    if error.errno == errno.EADDRINUSE:
        message = f"{key} {address} is in use: stop what listens there, or give this node another {key}"
        return StartError(NodeExit.ADDRESS_IN_USE, message)
    return StartError(NodeExit.SETTINGS, f"{key} {address}: {error.strerror}")


def folder_error(error: Exception) -> StartError:
    """The data folder cannot be made or opened."""
    code = NodeExit.DATA
    if isinstance(error, FolderReadOnly | NoSpace):
        code = NodeExit.READ_ONLY
    elif isinstance(error, FormatUnknown):
        code = NodeExit.UNKNOWN_VERSION
    return StartError(code, str(error))
