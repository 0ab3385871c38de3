"""The daemon of pyspark, which starts its worker processes, without a Python trace for a reader that has gone.

Spark closes a worker's socket as soon as it has read what it wanted, or stops. The worker's next word then fails, and
pyspark's daemon prints that failure, though nothing is missing. Spark starts this module for
`spark.python.daemon.module`.
"""

import sys
import traceback

from pyspark import daemon


class Reports:
    """In the place of `traceback` in pyspark's daemon, which prints what ended a worker."""

    @staticmethod
    def print_exc() -> None:
        """Prints the exception that is being handled, unless it says that the reader has gone."""
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            traceback.print_exc()


if __name__ == "__main__":
    daemon.traceback = Reports  # type: ignore[attr-defined, assignment]
    daemon.manager()
