"""Checks a backup while a client receives it, and starts it again at another node after a break: pure.

The clients drive it for `raftlog backup`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from raftlog.cluster.api.errors import Code
from raftlog.cluster.client import requests
from raftlog.cluster.client.cursors import BadStream
from raftlog.cluster.client.errors import Unavailable
from raftlog.cluster.client.flow import ApiRequest
from raftlog.cluster.client.requests import Consistency
from raftlog.cluster.records.backup_format import BackupDamaged, BackupDecoder, BackupEnd, BackupHead
from raftlog.raft.codec.checks import UnknownVersion

ATTEMPTS_MAX: Final = 5
"""Most attempts at one backup: a state that no node can read to its end must not be requested for ever."""


class BackupPiece(NamedTuple):
    """Checked bytes of the backup. `is_first`: they begin another attempt, so earlier bytes are void."""

    data: bytes
    parts: list[bytes]
    is_first: bool


@dataclass(slots=True)
class BackupCursor:
    """Reads one backup; `head` and `end` are there when it is done."""

    consistency: Consistency = "linearizable"
    head: BackupHead | None = None
    end_of: BackupEnd | None = None
    attempts: int = 0
    _decoder: BackupDecoder = field(default_factory=BackupDecoder)
    _is_first: bool = True
    _trouble: str = ""

    def is_done(self) -> bool:
        """Whether all bytes came and passed every check."""
        return self.end_of is not None

    def request(self) -> ApiRequest[None]:
        """Begins again. Raises Unavailable after ATTEMPTS_MAX."""
        if self.attempts >= ATTEMPTS_MAX:
            why = f"the backup broke off {self.attempts} times, the last time so: {self._trouble}"
            raise Unavailable(Code.NO_LEADER, why)
        self.attempts += 1
        self._decoder, self._is_first = BackupDecoder(), True
        self._trouble = "the connection ended"
        return requests.backup(consistency=self.consistency)

    def feed(self, data: bytes) -> list[BackupPiece]:
        """The bytes, once they passed their checks. Raises BadStream."""
        if not data:
            return []
        try:
            parts = self._decoder.feed(data)
        except (BackupDamaged, UnknownVersion) as error:
            self._trouble = str(error)
            raise BadStream(self._trouble) from error
        self.head = self._decoder.head
        piece = BackupPiece(data, parts, self._is_first)
        self._is_first = False
        return [piece]

    def end(self) -> None:
        """The answer is complete: is the backup? Raises BadStream."""
        try:
            self.head, self.end_of = self._decoder.finish()
        except BackupDamaged as error:
            self._trouble = str(error)
            raise BadStream(self._trouble) from error
