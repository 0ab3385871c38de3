"""Orders load inside a node's own process, over a port of that process, both ways as one JSON line."""

from __future__ import annotations

import socket

import msgspec

from bench.instruments.figures import Run

PORT_VARIABLE = "BENCH_CONTROL_PORT"


class Order(msgspec.Struct, frozen=True):
    """A load for the leader's process: `in_flight` appends of values of `size` bytes, for `seconds`."""

    in_flight: int
    seconds: float
    size: int


def send(port: int, order: Order) -> Run:
    """Sends the order to the process at `port` and waits. Raises OSError, or RuntimeError with the node's answer."""
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        sock.settimeout(order.seconds + 60)
        sock.sendall(msgspec.json.encode(order) + b"\n")
        answer = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    if not answer.startswith(b"{"):
        raise RuntimeError(f"the node could not make the load: {answer.decode(errors='replace')[-500:]}")
    return msgspec.json.decode(answer, type=Run)
