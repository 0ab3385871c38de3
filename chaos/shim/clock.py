"""Drives the wall clock of one process that carries the clock library (`clock.c`): it jumps and drifts as it runs."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Final

from raftlog.chaos.shim.library import build

SOURCE: Final = Path(__file__).with_name("clock.c")
_NUMBERS: Final = struct.Struct("=qqqq")


class Clock:
    """The clock of a process that starts with `environment`; true until a call changes it."""

    def __init__(self, home: Path, name: str) -> None:
        """Builds the library in the folder `home`. Raises ShimMissing."""
        home.mkdir(parents=True, exist_ok=True)
        self._library = build(home, SOURCE)
        self._file = (home / f"{name}.clock").resolve()
        self._count = 0
        self._file.write_bytes(_NUMBERS.pack(0, 0, 0, 0))

    @property
    def environment(self) -> dict[str, str]:
        """What the process needs in its environment."""
        return {"LD_PRELOAD": str(self._library.resolve()), "RAFTLOG_CLOCK": str(self._file)}

    def set(self, offset_s: float = 0.0, rate: float = 1.0) -> None:
        """From now on it is so many seconds off, and runs at that rate."""
        rate_ppb = round((rate - 1) * 1e9)
        self._count += 2
        with self._file.open("r+b", buffering=0) as file:
            file.write(struct.pack("=q", self._count - 1))  # odd: what reads it waits
            file.seek(8)
            file.write(struct.pack("=qqq", round(offset_s * 1e9), rate_ppb, time.monotonic_ns()))
            file.seek(0)
            file.write(struct.pack("=q", self._count))
