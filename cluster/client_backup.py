"""A backup on its way to a client: checked as it comes, and begun anew at another node where it breaks off: pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cluster import client_requests as requests
from cluster.backup_file import BackupDamaged, BackupDecoder, BackupEnd, BackupHead
from cluster.client_cursors import BadStream
from cluster.client_errors import Unavailable
from cluster.client_flow import Request
from cluster.client_requests import Consistency
from cluster.wire import Code
from raft.codec import UnknownVersion

ATTEMPTS_MAX: Final = 5
"""How often one backup is begun; a state that cannot be read to its end is not asked for without an end."""


class Piece(NamedTuple):
    """Bytes of the backup, checked. `is_first`: what came before is void, they begin another attempt."""

    data: bytes
    parts: list[bytes]
    is_first: bool


@dataclass(slots=True)
class BackupCursor:
    """Reads one backup; `head` and `end` are there when it is done."""

    consistency: Consistency = "linearizable"
    min_index: int = 0
    head: BackupHead | None = None
    end_of: BackupEnd | None = None
    attempts: int = 0
    _decoder: BackupDecoder = field(default_factory=BackupDecoder)
    _is_first: bool = True
    _trouble: str = ""

    def is_done(self) -> bool:
        """Everything came, and every check was passed."""
        return self.end_of is not None

    def request(self) -> Request[None]:
        """Begins anew. Raises Unavailable after ATTEMPTS_MAX."""
        if self.attempts >= ATTEMPTS_MAX:
            told = f"the backup broke off {self.attempts} times, the last time so: {self._trouble}"
            raise Unavailable(Code.NO_LEADER, told)
        self.attempts += 1
        self._decoder, self._is_first = BackupDecoder(), True
        self._trouble = "the connection ended"
        return requests.backup(consistency=self.consistency, min_index=self.min_index)

    def feed(self, data: bytes) -> list[Piece]:
        """The bytes, once they passed their checks. Raises BadStream."""
        if not data:
            return []
        try:
            parts = self._decoder.feed(data)
        except (BackupDamaged, UnknownVersion) as error:
            self._trouble = str(error)
            raise BadStream(self._trouble) from error
        self.head = self._decoder.head
        piece = Piece(data, parts, self._is_first)
        self._is_first = False
        return [piece]

    def end(self) -> None:
        """The answer is complete: is the backup? Raises BadStream."""
        try:
            self.head, self.end_of = self._decoder.finish()
        except BackupDamaged as error:
            self._trouble = str(error)
            raise BadStream(self._trouble) from error
