"""Sets up the node's log: structlog, one line per event, JSON unless on a terminal.

Nothing logs per entry or per message: loggers are bound once and cached, and frequent events are metrics. A line that
standard error does not accept (a full disk, a reader that has gone) is lost and counted, and the node goes on.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from typing import Any, Final, Literal

import structlog

from raftlog.cluster.runtime.log_file import sink
from raftlog.cluster.runtime.recent_events import KeepRecent
from raftlog.raft import events

_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

Logger = structlog.typing.FilteringBoundLogger


def configure(level: str, form: Literal["auto", "json", "text"]) -> None:
    """Sets the process up: lines go to standard error. Call once, before the first logger is used."""
    as_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer() if as_text else structlog.processors.JSONRenderer(separators=(",", ":"))
    )
    structlog.configure(
        processors=[
            KeepRecent(_LEVELS[level]),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(min(_LEVELS[level], logging.INFO)),
        logger_factory=structlog.WriteLoggerFactory(file=_Lines()),  # type: ignore[arg-type]  # has what it calls
        cache_logger_on_first_use=True,
    )


class _Lines:
    """The file object that structlog writes to."""

    def write(self, text: str) -> None:
        sink.write(text.encode("utf-8", "backslashreplace"))

    def flush(self) -> None:
        """Does nothing: no line is buffered."""


def log_strays(loop: asyncio.AbstractEventLoop, logger: Logger) -> None:
    """Logs exceptions that no caller waits for: those that end a callback, a task or a thread.

    The work that raised it is over, and the node goes on. Errors of the node's own state go to `Replica.fail` instead.
    """

    def on_loop(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        logger.error("stray_error", where=str(context.get("message", "")), reason=repr(error), exc_info=error)

    def in_thread(raised: threading.ExceptHookArgs) -> None:
        where = raised.thread.name if raised.thread is not None else "a thread"
        logger.error("stray_error", where=where, reason=repr(raised.exc_value), exc_info=raised.exc_value)

    loop.set_exception_handler(on_loop)
    threading.excepthook = in_thread


def get_logger(**bound: Any) -> Logger:
    """A logger that puts `bound` (node, component) on every line."""
    logger: Logger = structlog.get_logger(**bound)
    return logger


_LOUD: Final[dict[type, str]] = {
    events.PromisesLost: "disks.md, A disk that was rolled back",
    events.AcknowledgedLost: "disks.md, A disk that was rolled back",
    events.WentUnderFloor: "disks.md, A disk that was rolled back",
    events.LogDiffers: "causes.md, A log that differs from its leader's",
}
"""Events that need an operator's look at a disk or memory, with page and section of docs/operations that say how."""
_QUIET: Final = (events.FollowerProbing, events.BecamePreCandidate)


def log_event(logger: Logger, event: events.Event, term: int) -> None:
    """One line for an event of the core; its name is the event's type in snake case."""
    values = {name: getattr(event, name) for name in event.__dataclass_fields__}
    values.setdefault("term", term)
    name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in type(event).__name__)[1:]
    if isinstance(event, events.MessageIgnored):
        logger.warning(name, **values)
    elif (place := _LOUD.get(type(event))) is not None:
        logger.error(name, **values, see=f"docs/operations/{place}")
    elif isinstance(event, _QUIET):
        logger.debug(name, **values)
    else:
        logger.info(name, **values)
