"""Listens for a node, and defines why one does not start: the sentence for its operator, and the exit code."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

from raftlog.cluster.config.cluster_file import split_address
from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.files.errors import FolderReadOnly, FormatUnknown, NoSpace
from raftlog.cluster.runtime.door import Door, listen


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


async def listen_for(
    doors: list[Door], key: str, address: str, factory: Callable[[], asyncio.BaseProtocol], backlog: int, **given: Any
) -> None:
    """Adds the door at the address of that setting, if it names one. Raises StartError, and then all are closed."""
    if not address:
        return
    try:
        doors.append(await listen(factory, *split_address(address, key), backlog, **given))
    except OSError as error:
        for door in doors:
            await door.close()
        raise not_listening(key, address, error) from error


def folder_error(error: Exception) -> StartError:
    """The data folder cannot be made or opened."""
    code = NodeExit.DATA
    if isinstance(error, FolderReadOnly | NoSpace):
        code = NodeExit.READ_ONLY
    elif isinstance(error, FormatUnknown):
        code = NodeExit.UNKNOWN_VERSION
    return StartError(code, str(error))
