"""One node of the peer PySyncObj.

`python -m bench.contenders.pysyncobj_node SELF OTHER OTHER JOURNAL CONTROL_PORT each|batches` starts it.

Its journal is on disk and never synced: that is what the library offers. Load comes from within
(`bench.contenders.control`). `batches` is the library's default: what came is sent every 100 ms. With `each` it is sent
at once, an entry a message.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from bench.contenders.control import Loop, Order
from bench.instruments.figures import Run


def main() -> None:
    """Ticks for ever."""
    import pysyncobj

    own, *others, journal, port, sending = sys.argv[1:]

    class Log(pysyncobj.SyncObj):  # type: ignore[misc]
        """A state that is only how much came."""

        def __init__(self) -> None:
            settings = pysyncobj.SyncObjConf(
                autoTick=False, journalFile=journal, appendEntriesUseBatch=sending == "batches"
            )
            super().__init__(own, others, settings)
            self.count = 0

        @pysyncobj.replicated
        def append(self, value: bytes) -> int:
            """One entry."""
            self.count += 1
            return self.count

    log = Log()
    asked: deque[tuple[socket.socket, bytes]] = deque()

    def listen() -> None:
        server = socket.create_server(("127.0.0.1", int(port)))
        while True:
            sock, _ = server.accept()
            asked.append((sock, sock.makefile("rb").readline()))

    threading.Thread(target=listen, daemon=True).start()
    while True:
        log.doTick(0.002)
        if asked:
            sock, line = asked.popleft()
            if not log._isLeader():
                sock.sendall(b"not the leader")
                sock.close()
                continue
            _serve(log, sock, msgspec.json.decode(line, type=Order))


def _serve(log: Any, sock: socket.socket, order: Order) -> None:
    value = b"x" * order.size

    def submit(done: Callable[[bool], None]) -> None:
        log.append(value, callback=lambda _, error: done(not error))

    def ended(run: Run) -> None:
        sock.sendall(msgspec.json.encode(run))
        sock.close()

    Loop(order, submit, ended).begin()


if __name__ == "__main__":
    main()
