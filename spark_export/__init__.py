"""The log as a Spark table."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raftlog.spark_export.runtime.job import session

__all__ = ["session"]


def __getattr__(name: str) -> Any:
    """`spark_export.session`, imported when it is asked for: most of this package works without Spark."""
    if name == "session":
        from raftlog.spark_export.runtime.job import session

        return session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
