"""Holds the objects that all handlers of a node share, one per HTTP server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from raftlog.cluster.admission.access import Access
from raftlog.cluster.admission.budget import SCANS_MAX
from raftlog.cluster.admission.load import LoadBounds
from raftlog.cluster.api.errors import ApiError, Code, Problem, make_problem
from raftlog.cluster.api.headers import JSON
from raftlog.cluster.config.settings import LimitSettings, Settings
from raftlog.cluster.http.exchange.answer import HttpAnswer, ServerIdentity, encode_json
from raftlog.cluster.http.exchange.consumer_lag import Lags
from raftlog.cluster.http.exchange.follow import LogTail
from raftlog.cluster.replica.interface import NodeInterface
from raftlog.cluster.security.tls import Credentials


@dataclass(slots=True)
class Service:
    node: NodeInterface
    limits: LimitSettings
    entry_bytes_max: int
    clock: Callable[[], float]  # seconds of the event loop
    identity: ServerIdentity
    lags: Lags
    access: Access
    settings: Settings
    credentials: Credentials | None = None  # with TLS
    overview: tuple[float, bytes] = (-inf, b"")  # when the newest one was made, and its body
    is_leaving: bool = False  # every answer closes its connection
    is_stopping: bool = False  # new requests are refused
    routes: list[str] = field(default_factory=list)  # the list that `/` answers
    scans: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SCANS_MAX))
    tail: LogTail = field(init=False)
    load: LoadBounds = field(init=False)
    _waits: set[asyncio.Future[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        limits = self.limits
        self.load = LoadBounds(limits)
        self.tail = LogTail(
            self.node, self.clock, self.wait_beyond, limits.stream_gather_ms / 1000, limits.progress_ms / 1000
        )

    def answer(self, body: Any, index: int | None = None, term: int | None = None) -> HttpAnswer:
        """A struct as JSON; index and term are the node's if they are not given."""
        node = self.node
        index = node.applied if index is None else index
        return HttpAnswer(self.identity, encode_json(body), index, node.term if term is None else term)

    def bare(
        self, body: bytes, content_type: str = JSON, status: int = 200, extra: Sequence[tuple[str, str]] = ()
    ) -> HttpAnswer:
        """A body as it is, at this node's index and term."""
        node = self.node
        return HttpAnswer(
            self.identity, body, node.applied, node.term, status=status, content_type=content_type, extra=extra
        )

    def problem(self, error: ApiError, request_id: str, *, has_session: bool = False) -> Problem:
        """The error as the sender of that request gets it. `has_session`: it is a write that names a session."""
        node = self.node
        return make_problem(
            error,
            node=self.identity.node_id,
            request_id=request_id,
            leader=node.leader_hint(),
            index=node.applied,
            term=node.term,
            has_session=has_session,
        )

    async def wait_beyond(self, index: int, deadline: float) -> None:
        """Waits until something after `index` is applied, or the deadline. Raises ApiError shutting_down at a stop."""
        self.refuse_when_stopping()
        wait = asyncio.ensure_future(self.node.wait_beyond(index, deadline))
        self._waits.add(wait)
        try:
            await wait
        except asyncio.CancelledError:
            self.refuse_when_stopping()
            raise
        finally:
            self._waits.discard(wait)
            wait.cancel()

    def refuse_when_stopping(self) -> None:
        """Raises ApiError shutting_down once `stop` was called."""
        if self.is_stopping:
            raise ApiError(Code.SHUTTING_DOWN, "this node is being stopped: ask another one")

    def stop(self) -> None:
        """Refuses new requests; long polls and streams end with what they have."""
        self.is_stopping = True
        for wait in self._waits:
            wait.cancel()
