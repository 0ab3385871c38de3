"""Runs Spark's Python workers without a stack trace when the JVM is gone, and with less garbage collection.

Over Unix sockets such a worker notices the JVM's end only when it writes its last bytes, and Spark's daemon prints a
stack trace. Workers of tasks start from this module instead of Spark's (setting `spark.python.daemon.module`). Workers
that plan always start from Spark's own module, and call `hush` when they import the source.

Behind every task a worker looks for garbage, through all that it has ever imported: 20 ms each. What the first one left
is not looked through again.
"""

import gc
import socket
import sys
from collections.abc import Callable
from typing import Any

from pyspark import daemon

Worker = Callable[[socket.socket, bool], int]
"""Does one thing that the JVM asks for, and gives an exit code: Spark calls it again until that is not 0."""


def quietly(worker: Worker) -> Worker:
    """The worker's result, or 1 when the JVM no longer reads its answer."""
    is_first = True

    def quiet(sock: socket.socket, authenticated: bool) -> int:
        nonlocal is_first
        try:
            code = worker(sock, authenticated)
        except BrokenPipeError:
            return 1
        if is_first:
            is_first = False
            gc.collect()
            gc.freeze()
        return code

    return quiet


def hush() -> None:
    """Makes this process quiet, if Spark's own daemon started it."""
    main: Any = sys.modules["__main__"]
    if main.__spec__ is not None and main.__spec__.name == daemon.__name__:
        main.worker = quietly(main.worker)


if __name__ == "__main__":
    daemon.__dict__["worker"] = quietly(daemon.worker)
    daemon.manager()
