"""As much of a Spark session as the exporter uses, with the tasks run here, one after the other: no Java.

What the exporter itself does is tested with it quickly and at every step; that it works in Spark, others test.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa


class InlineSpark:
    """`spark.range(…).mapInArrow(write, …).collect()`, and nothing else; `jobs` counts them."""

    def __init__(self) -> None:
        self.jobs = 0

    def range(self, start: int, stop: int, step: int, partitions: int) -> "InlineFrame":
        """The numbers, one task for each."""
        self.jobs += 1
        return InlineFrame(list(range(start, stop, step)))


class InlineFrame:
    """Numbers for tasks."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers

    def mapInArrow(
        self, write: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str
    ) -> "InlineRows":
        """What the tasks give."""
        return InlineRows(self.numbers, write)


class InlineRows:
    """The results of tasks that have not run yet."""

    def __init__(self, numbers: list[int], write: Callable[..., Any]) -> None:
        self.numbers = numbers
        self.write = write

    def collect(self) -> list[dict[str, Any]]:
        """Runs them."""
        batches = (pa.record_batch([pa.array([number])], names=["id"]) for number in self.numbers)
        return [row for batch in batches for given in self.write(iter([batch])) for row in given.to_pylist()]
