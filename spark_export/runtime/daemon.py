"""The daemon of pyspark, which starts its worker processes, without a Python trace for a reader that has gone.

Spark closes a worker's socket as soon as it has read what it wanted. The worker's last flush then fails, and pyspark's
daemon prints that failure, though nothing is missing. Spark starts this module for `spark.python.daemon.module`.
"""

import socket
from typing import Final

from pyspark import daemon

READER_GONE: Final = 1
"""The exit code that ends a worker, as after any other failure of it."""

_worker: Final = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Works as pyspark's own, and ends with READER_GONE where its reader has closed the socket."""
    try:
        return _worker(sock, authenticated)
    except BrokenPipeError:
        return READER_GONE


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
