"""Writers with the same notes write each request once, through kills, races and expiries, and leave no session open."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from hypothesis import given, strategies as st

from raftlog.cluster.api.errors import Code
from raftlog.cluster.client import requests
from raftlog.cluster.client.errors import CompareFailed, OutcomeUnknown, SessionExpired
from raftlog.cluster.client.once import OnceWriter, StoreNotes

KEY = b"notes"
REQUESTS = 5


class Cluster:
    """A store with one key and a log, whose answers may be lost. It is a client, too."""

    def __init__(self, lost: list[bool]) -> None:
        self.lost = lost  # for each put in turn, whether its answer is
        self.kept: Any = None
        self.revision = 1
        self.records: list[Any] = []
        self.sessions: dict[int, dict[int, Any]] = {}
        self.index = 0
        self.before_put: Any = None

    def open_session(self, _: int) -> Any:
        self.index += 1
        self.sessions[self.index] = {}
        return SimpleNamespace(session=self.index)

    def get(self, _: bytes) -> Any:
        return self.kept

    def put(self, _: bytes, value: bytes, *, if_revision: int) -> Any:
        if (race := self.before_put) is not None:
            self.before_put = None
            race()
        if (self.kept.mod if self.kept is not None else 0) != if_revision:
            raise CompareFailed(Code.COMPARE_FAILED, "another revision")
        self.revision += 1
        self.kept = SimpleNamespace(value=value, mod=self.revision)
        if self.lost and self.lost.pop():
            raise OutcomeUnknown(Code.TIMEOUT, "lost")
        return SimpleNamespace(revision=self.revision)

    def call(self, request: Any, *, ticket: Any = None, deadline_s: float | None = None) -> Any:
        if isinstance(request, int):
            self.sessions.pop(request, None)
            return None
        done = self.sessions.get(ticket.book.session)
        if done is None:
            raise SessionExpired(Code.SESSION_EXPIRED, "expired")
        if ticket.sequence not in done:
            self.index += 1
            done[ticket.sequence] = request
            self.records.append(
                SimpleNamespace(
                    session=ticket.book.session, sequence=ticket.sequence, index=self.index, result="applied"
                )
            )
        return request

    def log(self, since: int) -> Any:
        return [each for each in self.records if each.index >= since]

    def writer(self) -> OnceWriter:
        """As a new process makes it."""
        client: Any = self
        return OnceWriter(client, StoreNotes(client, KEY), ttl_ms=1_000)


@given(
    st.lists(st.tuples(st.sampled_from(["write", "write", "kill", "expire", "race"]), st.integers(0, 1)), max_size=30),
    st.lists(st.booleans(), max_size=8),
)
def test_each_request_is_written_once_and_one_session_is_left(steps: list[tuple[str, int]], lost: list[bool]) -> None:
    """Two writers give the same requests, in order, each at its own pace. `race`: the other one writes its next
    request while this one keeps a new session."""
    cluster = Cluster(lost)
    with patch.object(requests, "close_session", lambda session: session):
        writers = [cluster.writer(), cluster.writer()]
        at = [1, 1]

        def write(which: int) -> None:
            if at[which] <= REQUESTS:
                request: Any = f"request {at[which]}"
                writers[which].write(request, at[which])
                at[which] += 1

        for what, which in steps:
            if what == "kill":
                writers[which], at[which] = cluster.writer(), 1
            elif what == "expire":
                cluster.sessions.clear()
            else:
                cluster.before_put = (lambda other=1 - which: write(other)) if what == "race" else None
                write(which)
                cluster.before_put = None
        for which in (0, 1):
            while at[which] <= REQUESTS:
                write(which)
    assert [each.sequence for each in cluster.records] == list(range(1, REQUESTS + 1))
    assert len(cluster.sessions) <= 1, "no session is left but the noted one"
