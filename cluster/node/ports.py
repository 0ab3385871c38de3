"""Gives free TCP ports of 127.0.0.1, each to one process: to local clusters, chaos runs, benchmarks and tests."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

HOST: Final = "127.0.0.1"
PORT_MIN: Final = 10_240
PORT_MAX: Final = 31_999
"""Systems take the ports of outgoing connections from above it (Linux from 32768 on, others from 49152). So no outgoing
connection takes the port of a node that is down."""
_begin: Final = PORT_MIN + os.getpid() * 97 % (PORT_MAX + 1 - PORT_MIN)  # few processes look at the same ports
_candidates: Final = itertools.cycle(itertools.chain(range(_begin, PORT_MAX + 1), range(PORT_MIN, _begin)))


class PortTakenError(RuntimeError):
    """Another process listens on the given port, or no port is free."""


def free_ports(count: int) -> list[int]:
    """`count` different ports on which no process listens. Raises PortTakenError.

    Each belongs to this process until it ends: no other call gives it, here or in another process. So a node that was
    killed finds its port free when it starts again.
    """
    ports = list(itertools.islice(filter(is_claimed, itertools.islice(_candidates, PORT_MAX + 1 - PORT_MIN)), count))
    if len(ports) < count:
        raise PortTakenError(f"{count} free ports are needed between {PORT_MIN} and {PORT_MAX}: {len(ports)} are")
    return ports


def ports_from(base: int) -> Callable[[int], list[int]]:
    """A function as `free_ports` that gives `base` and the numbers after it. It claims none."""
    numbers = itertools.count(base)

    def ports(count: int) -> list[int]:
        chosen = list(itertools.islice(numbers, count))
        if taken := [port for port in chosen if not is_free(port)]:
            raise PortTakenError(f"somebody listens on {HOST}:{taken[0]} already: give another --base-port")
        return chosen

    return ports


def addresses(ports: Sequence[int]) -> list[str]:
    """The ports as HOST:PORT."""
    return [f"{HOST}:{port}" for port in ports]


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a closed connection is no listener
        with suppress(OSError, OverflowError):
            probe.bind((HOST, port))
            return True
    return False


def is_claimed(port: int) -> bool:
    """Whether the port was free, and is this process's until it ends: its UDP twin stays bound as the claim."""
    if is_free(port):
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as claim:
            claim.bind((HOST, port))
            claim.detach()
            return True
    return False
