"""Makes the TLS of a node: checks whose certificate it has, logs refused clients, and warns before it expires.

`raftlog.cluster.node.process` makes one if section security names files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from raftlog.cluster.config.settings import LimitSettings
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.door import Encryption
from raftlog.cluster.runtime.line_limit import LineLimit
from raftlog.cluster.runtime.logging import Logger
from raftlog.cluster.runtime.metrics import Metrics
from raftlog.cluster.security.authority import holder_of_file, read_facts
from raftlog.cluster.security.names import Holder, HolderKind
from raftlog.cluster.security.tls import LOOK_S, Credentials, TlsError, TlsFiles

WARN_DAYS: Final = 30.0
WARN_EVERY_S: Final = 86_400.0


class NodeTls:
    """The TLS of one node. Made on its event loop."""

    def __init__(self, files: TlsFiles, log: str, node: int, logger: Logger) -> None:
        """Raises TlsError or UnknownHolder if the files cannot serve this node of this log."""
        self._files = files
        self._wanted = Holder(log, HolderKind.NODE, str(node))
        self._logger = logger
        self._lines = LineLimit()
        self._timer: asyncio.TimerHandle | None = None
        holder = holder_of_file(Path(files.certificate))
        if holder != self._wanted:
            raise TlsError(
                f"{files.certificate} is the certificate of {holder}: this is {self._wanted}; make one with "
                "`raftlog cert node`"
            )
        self.credentials = Credentials(files, self._changed, node=self._wanted)
        self._expires_s = self._expiry()
        self._end_revoked: Callable[[], None] | None = None
        self._warn()
        self._look_again()

    def show(self, metrics: Metrics) -> None:
        """Adds the time until the certificate expires to `/metrics`."""
        metrics.number("raftlog_certificate_expires_seconds", self._left_s)

    def encryption(self, limits: LimitSettings) -> Encryption:
        return Encryption(
            lambda: self.credentials.context("api"),
            handshake_s=limits.handshake_timeout_ms / 1_000,
            handshakes_max=limits.handshakes_max,
            address_max=limits.address_handshakes_max,
            refused=self._refused,
            takes_plain=self.credentials.takes_plain,
        )

    def look(self) -> None:
        self.credentials.look()

    def on_change(self, end_revoked: Callable[[], None]) -> None:
        """Calls this after the files have changed: it ends the connections of revoked certificates."""
        self._end_revoked = end_revoked

    def _look_again(self) -> None:
        self.look()
        asyncio.get_running_loop().call_later(LOOK_S, self._look_again)

    def _expiry(self) -> float:
        return read_facts(Path(self._files.certificate)).not_after.timestamp()

    def _left_s(self) -> float:
        return self._expires_s - clock.wall_ms() / 1_000

    def _warn(self) -> None:
        """Logs once a day that the certificate expires soon."""
        days = self._left_s() / 86_400
        if days < WARN_DAYS:
            self._logger.warning(
                "certificate_expires",
                certificate=self._files.certificate,
                days=int(days),
                mend="put a new one in its place: raftlog cert node; no restart is needed",
            )
        self._timer = asyncio.get_running_loop().call_later(WARN_EVERY_S, self._warn)

    def _changed(self, trouble: str) -> None:
        if trouble:
            self._logger.error("tls_files_refused", reason=trouble, meaning="the files in use before stay in use")
            return
        self._expires_s = self._expiry()
        if self._end_revoked is not None:
            self._end_revoked()
        self._logger.info("tls_files_taken", certificate=self._files.certificate, days=int(self._left_s() / 86_400))

    def _refused(self, where: str, reason: str) -> None:
        self.credentials.refused = clock.monotonic(), where, reason
        if self._lines.allows(reason):
            self._logger.warning("tls_refused", client=where, reason=reason, left_out=self._lines.take_left_out())
