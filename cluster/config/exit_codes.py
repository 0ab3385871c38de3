"""Defines the exit codes of a node process."""

from enum import IntEnum
from typing import Final


class NodeExit(IntEnum):
    """How a node process ends; docs/http_api.md and `raftlog node --help` list these."""

    OK = 0  # stopped when asked to
    FAILURE = 1  # a bug or an unexpected error: the last log line has the traceback
    SETTINGS = 2  # a setting, a cluster file or a flag is wrong
    ADDRESS_IN_USE = 10  # another process listens there already
    DATA = 11  # the data folder is missing, damaged, or of another node or cluster
    READ_ONLY = 12  # the data folder cannot be written
    FENCED = 13  # a disk error while running: a promised entry or vote may be missing on disk
    UNKNOWN_VERSION = 14  # the log holds something that only a newer raftlog knows
    REMOVED = 15  # stopped when asked to, and no longer a member: do not start it again
    DIVERGED = 16  # its state differs from that of a majority: the next start rebuilds it from the log
    DAMAGED = 17  # its files are damaged, or its log differs from its leader's: the next start repairs them


NOT_MENDED_BY_A_START: Final = (NodeExit.SETTINGS, NodeExit.DATA, NodeExit.UNKNOWN_VERSION, NodeExit.REMOVED)
"""After these an operator must act first: RestartPreventExitStatus= of the unit for systemd."""
