"""Reports a node's state to the service manager that started it, as sd_notify(3) of systemd describes.

`raftlog.cluster.node.process` makes one if NOTIFY_SOCKET names a socket. The reports leave from the event loop: while
that is blocked the manager hears nothing, and its watchdog ends the process.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from typing import Final

from raftlog.cluster.runtime import clock

LOOK_S: Final = 0.25
"""Seconds between two looks at the state; only a change is reported."""
StateLook = Callable[[], tuple[bool, str]]
"""Answers whether the node is ready, and its state in words."""


class ServiceManager:
    """Made on the event loop. `look` may be replaced at any time."""

    def __init__(self, address: str, watchdog_s: float) -> None:
        """`address`: of a datagram socket; @ stands for the first byte of an abstract one. `watchdog_s`: the manager
        ends a process that it has not heard of for so long; 0: it does not."""
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._every_s = watchdog_s / 2  # as sd_watchdog_enabled(3) recommends
        self._alive_at = 0.0
        self._is_ready, self._status = False, ""
        self.look: StateLook = lambda: (False, "opens its data folder")
        self._timer = asyncio.get_running_loop().call_soon(self._tick)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> ServiceManager | None:
        """The one that these variables name; None: no manager waits for reports."""
        address = environment.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return None
        microseconds = environment.get("WATCHDOG_USEC", "")
        is_watched = microseconds.isdecimal() and environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        return cls(address, int(microseconds) / 1e6 if is_watched else 0.0)

    def stopping(self) -> None:
        """The node ends from now on."""
        self.look = lambda: (self._is_ready, "stops")
        self._send("STOPPING=1")

    def close(self) -> None:
        """Reports nothing more."""
        self._timer.cancel()
        self._socket.close()

    def _tick(self) -> None:
        waits_s = min(LOOK_S, self._every_s) if self._every_s else LOOK_S
        self._timer = asyncio.get_running_loop().call_later(waits_s, self._tick)
        if self._every_s and clock.monotonic() + waits_s > self._alive_at and self._send("WATCHDOG=1"):
            self._alive_at = clock.monotonic() + self._every_s
        is_ready, status = self.look()
        if status != self._status and self._send(f"STATUS={status}"):
            self._status = status
        if is_ready and not self._is_ready:
            self._is_ready = self._send("READY=1")

    def _send(self, report: str) -> bool:
        """Whether the manager gets it. A manager that is gone, or does not read, delays no node."""
        try:
            self._socket.sendto(report.encode(), self._address)
        except OSError:
            return False
        return True
