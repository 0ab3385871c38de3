"""Defines what an export and its verification need from the engine that runs them: Spark, or this process alone.

`arrow_engine.py` needs numpy and pyarrow, and starts at once. `spark_engine.py` needs Java, and spreads the work over a
cluster of machines. Both write the same rows and find the same faults.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from raftlog.cluster.api.status import SetDigestHex
from raftlog.spark_export.export.place import Place

ARROW_RECORDS_MAX: Final = 5_000_000
"""Most records that `--engine auto` leaves to one process. Spark takes some seconds to start, and then is twice as fast
on two cores; the process keeps every live key of the log in memory while it verifies."""


class UnreadableError(Exception):
    """The files cannot be read as rows of the log; the message says why in one line."""


class Rows(Protocol):
    """The rows of some Parquet files of an export, whatever is in them. Every method raises UnreadableError."""

    def state(self) -> SetDigestHex:
        """The digest of the live keys to which the rows fold."""

    def top_keys(self, most: int) -> list[tuple[bytes, int]]:
        """The keys with the most user records, and how many each has; of equally many the first by bytes."""


class Engine(Protocol):
    """Runs tasks, and reads exports."""

    def run(self, task: Callable[[int], bytes], count: int) -> list[bytes]:
        """The results of `task` for the numbers below `count`, in order."""

    def rows(self, paths: Sequence[Place]) -> Rows:
        """The rows of these files."""
