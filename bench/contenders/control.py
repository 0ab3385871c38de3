"""Makes load inside a node's own process, ordered over a port of that process, both ways as one JSON line."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import msgspec

from bench.instruments.figures import Run, run_of

PORT_VARIABLE = "BENCH_CONTROL_PORT"


class Order(msgspec.Struct, frozen=True):
    """A load for the leader's process: `in_flight` commits of values of `size` bytes, for `seconds`.

    With `keys` they are puts to that many keys in turn, beginning with the key of number `first`; otherwise appends.
    """

    in_flight: int
    seconds: float
    size: int
    keys: int = 0
    first: int = 0


def send(port: int, order: Order) -> Run:
    """Sends the order to the process at `port` and waits. Raises OSError, or RuntimeError with the node's answer."""
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        sock.settimeout(order.seconds + 60)
        sock.sendall(msgspec.json.encode(order) + b"\n")
        told = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    if not told.startswith(b"{"):
        raise RuntimeError(f"the node could not make the load: {told.decode(errors='replace')[-500:]}")
    return msgspec.json.decode(told, type=Run)


class Loop:
    """A closed loop of callbacks: `submit(done)` begins a commit and calls `done(good)` once it is applied."""

    def __init__(self, order: Order, submit: Callable[[Callable[[bool], None]], None], ended: Callable[[Run], None]):
        self._order = order
        self._submit = submit
        self._ended = ended
        self._latencies: list[float] = []
        self._bad = 0
        self._open = 0
        self._start = time.perf_counter()
        self._end = self._start + order.seconds

    def begin(self) -> None:
        """Fills the window."""
        for _ in range(self._order.in_flight):
            self._one()

    def _one(self) -> None:
        began = time.perf_counter()
        self._open += 1

        def done(good: bool) -> None:
            now = time.perf_counter()
            self._open -= 1
            if good:
                self._latencies.append((now - began) * 1e3)
            else:
                self._bad += 1
            if now < self._end:
                self._one()
            elif not self._open:
                self._ended(run_of(self._order.in_flight, now - self._start, self._latencies, self._bad))

        self._submit(done)
