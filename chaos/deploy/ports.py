"""Finds free TCP ports for a cluster and its proxies, outside the range from which clients take theirs."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

PORT_MIN: Final = 21_000
PORT_MAX: Final = 31_999
"""Below 32,768, where Linux begins to give ports to clients that connect."""


class PortTakenError(RuntimeError):
    """Another process listens on the given port, or no port is free."""


class Ports:
    """Gives ports, each once. With a `base` those that follow it; else whichever are free."""

    def __init__(self, base: int | None = None) -> None:
        self._base = base
        span = PORT_MAX - PORT_MIN
        self._next = base if base is not None else PORT_MIN + os.getpid() * 97 % span  # not all runs from the same

    def __call__(self, count: int) -> list[int]:
        """That many. Raises PortTakenError."""
        ports: list[int] = []
        for _ in range(PORT_MAX - PORT_MIN + count):
            if len(ports) == count:
                return ports
            port, self._next = self._next, self._next + 1
            if self._base is None and self._next > PORT_MAX:
                self._next = PORT_MIN
            if is_claimed(port) if self._base is None else _is_free(port):
                ports.append(port)
            elif self._base is not None:
                raise PortTakenError(f"somebody listens on 127.0.0.1:{port} already: give another --base-port")
        raise PortTakenError(f"{count} free ports are needed between {PORT_MIN} and {PORT_MAX}: {len(ports)} are")


def addresses(ports: Sequence[int]) -> list[str]:
    """Where one listens on them."""
    return [f"127.0.0.1:{port}" for port in ports]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a closed connection is no listener
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
    return True


def is_claimed(port: int) -> bool:
    """Whether the port was free, and is this process's until it ends: its UDP twin stays bound as the claim."""
    if not _is_free(port):
        return False
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as claim:
        claim.bind(("127.0.0.1", port))
        claim.detach()
        return True
    return False
