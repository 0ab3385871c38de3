"""Holds the bounds on the load of one node, which all its protocols share: requests, streams, turns and bytes."""

from __future__ import annotations

from raftlog.cluster.admission.budget import Budget
from raftlog.cluster.admission.queue import FairQueue
from raftlog.cluster.admission.quota import Slots
from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.config.settings import LimitSettings
from raftlog.cluster.runtime.freed_memory import FreedMemory


class LoadBounds:
    __slots__ = ("_limits", "answers", "backups", "bodies", "digests", "freed", "open_requests", "queue", "streams")

    def __init__(self, limits: LimitSettings) -> None:
        self._limits = limits
        self.open_requests = 0  # served, or in line
        self.streams = Slots("streams are open", limits.watchers_max, "watchers_max")
        self.digests = Slots("log digests are being computed", limits.digests_max, "digests_max")
        self.backups = Slots("backups are being taken here", limits.backups_max, "backups_max")
        self.freed = FreedMemory()
        self.bodies = Budget("bodies", limits.bodies_bytes_max, self.freed.return_soon)  # of unanswered requests
        # Answers that clients have not read yet.
        self.answers = Budget("answers", limits.answers_bytes_max, self.freed.return_soon)
        self.queue = FairQueue(limits.fair_requests_max, limits.principal_waiting_max)

    def check_requests(self, *, for_operators: bool, keeps_session: bool) -> None:
        """Raises ApiError busy if more requests are open than may be, and more than the share of that kind besides."""
        limits = self._limits
        share = limits.operator_requests_max if for_operators else 0
        if keeps_session:
            share = limits.keepalives_max
        if self.open_requests > limits.open_requests_max + share:
            raise ApiError(
                Code.BUSY,
                f"{limits.open_requests_max} requests are being served (limits.open_requests_max): "
                "try again, or another node",
            )
