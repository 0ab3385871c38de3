"""Defines the errors of a reader of the log, each with the exit code of the command line."""

from typing import ClassVar, Final

EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 5
EXIT_NOT_VERIFIED: Final = 7
EXIT_NOT_CHECKED: Final = 8
EXIT_NOT_PERMITTED: Final = 9


class ExportError(RuntimeError):
    """An error whose message says what failed, where, and what to do."""

    exit_code: ClassVar[int] = 1


class UsageError(ExportError):
    """An option or a folder that cannot be used as it is."""

    exit_code = EXIT_USAGE


class UnreachableError(ExportError):
    """No node could answer within the patience of the caller."""

    exit_code = EXIT_UNREACHABLE


class NotPermittedError(ExportError):
    """The user may not read this, or is not known."""

    exit_code = EXIT_NOT_PERMITTED


class FencedError(ExportError):
    """Somebody else owns the consumer group now."""


class DataLossError(ExportError):
    """Records that were asked for are no longer kept, or belong to another log."""


class CannotWriteError(ExportError):
    """The export folder cannot be written, or its disk is full."""


class NotCheckedError(ExportError):
    """A check could not be made: neither right nor wrong was found."""

    exit_code = EXIT_NOT_CHECKED


class ExtraMissingError(ExportError):
    """A package that only some commands need is not installed; the message has the command that installs it."""

    exit_code = EXIT_NOT_CHECKED
