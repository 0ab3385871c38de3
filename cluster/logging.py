"""What the node says about itself: structlog set up once, one line per event, JSON unless on a terminal.

Nothing logs per entry or per message: loggers are bound once and cached, and what happens often is a metric. A line
that standard error does not take (a full disk, a reader that has gone) is lost and counted: the node goes on.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from typing import Any, Final, Literal

import structlog

from cluster.log_file import sink
from raft import events

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
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=_Lines()),  # type: ignore[arg-type]  # has what it calls
        cache_logger_on_first_use=True,
    )


class _Lines:
    """What structlog writes to."""

    def write(self, text: str) -> None:
        sink.write(text.encode("utf-8", "backslashreplace"))

    def flush(self) -> None:
        """Nothing is kept."""


def log_strays(loop: asyncio.AbstractEventLoop, logger: Logger) -> None:
    """What no code waits for gets a line too: an exception that ends a callback, a task or a thread. The work that
    raised it is over, the node goes on; what belongs to the node's state goes to `Node.fail` instead."""

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
    events.PromisesLost: "A disk that was rolled back",
    events.AcknowledgedLost: "A disk that was rolled back",
    events.WentUnderFloor: "A disk that was rolled back",
    events.LogDiffers: "A log that differs from its leader's",
}
"""A person should look at a disk or at a memory: the section of docs/operations.md that says how."""
_QUIET: Final = (events.FollowerProbing, events.BecamePreCandidate)


def log_event(logger: Logger, event: events.Event, term: int) -> None:
    """One line for an event of the core; its name is the event's type in snake case."""
    values = {name: getattr(event, name) for name in event.__dataclass_fields__}
    values.setdefault("term", term)
    name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in type(event).__name__)[1:]
    if isinstance(event, events.MessageIgnored):
        logger.warning(name, **values)
    elif (section := _LOUD.get(type(event))) is not None:
        logger.error(name, **values, see=f"docs/operations.md, {section}")
    elif isinstance(event, _QUIET):
        logger.debug(name, **values)
    else:
        logger.info(name, **values)
