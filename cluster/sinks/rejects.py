"""Keeps the records that a sink's store does not take, with index, key and reason, one a line of NDJSON."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from raftlog.cluster.runtime.file_errors import replace_file


class Rejected(msgspec.Struct, frozen=True):
    """A rejected change."""

    index: int
    key: str
    reason: str


_decode: Final = msgspec.json.Decoder(Rejected).decode


class Rejects:
    """The file of rejected changes of one sink. A change is there once, also after a kill and a repetition."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: set[tuple[int, str]] | None = None

    def read(self) -> list[Rejected]:
        """All of them. Raises OSError, ValueError."""
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")
        return [_decode(line) for line in lines[:-1]]  # a torn line has no end

    def add(self, index: int, key: str, reason: str) -> None:
        """Appends one durably. Raises OSError."""
        if self._known is None:
            found = self.read()
            self.replace(found)  # without a line that a crash left torn
            self._known = {(each.index, each.key) for each in found}
        if (index, key) in self._known:
            return
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(Rejected(index, key, reason)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._known.add((index, key))

    def replace(self, rejected: Iterable[Rejected]) -> None:
        """Keeps these and no others, durably. Raises OSError."""
        replace_file(self.path, b"".join(msgspec.json.encode(each) + b"\n" for each in rejected))
        self._known = None
