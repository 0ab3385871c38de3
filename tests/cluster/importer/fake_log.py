"""Provides a log without a cluster: it applies a batch once, and the importer before it can end at each step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from raftlog.cluster.api.errors import Code, Outcome
from raftlog.cluster.api.records import Appended
from raftlog.cluster.client import requests
from raftlog.cluster.client.errors import Unavailable
from raftlog.cluster.client.new_records import NewRecord
from raftlog.cluster.importer.session_file import read_state
from tests.cluster.importer.jobs import Killed


def is_done(path: Path) -> bool:
    """Whether the import of this session file has ended."""
    state = read_state(path)
    return state is not None and state.position["done"]


@dataclass
class FakeLog:
    """What an importer needs of a client. Used within `in_place`."""

    records: list[NewRecord] = field(default_factory=list)
    answers: dict[tuple[int, int], tuple[Sequence[NewRecord], Appended]] = field(default_factory=dict)
    session: int = 0  # the newest
    steps_left: int = 0  # until the importer is killed; 0: it is not
    has_leader: bool = True
    log: str = "ab" * 16

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """An append is its records, and files are synced at no cost; each of that is a step."""
        with patch.object(requests, "append", tuple), patch("os.fsync", self.step):
            yield

    def step(self, _: object = None) -> None:
        """The importer did something: perhaps it ends now."""
        self.steps_left -= 1
        if not self.steps_left:
            raise Killed

    def status(self) -> FakeLog:
        """It knows the id of the log."""
        return self

    def open_session(self, _: int) -> FakeLog:
        """It knows the session."""
        self.session += 1
        self.step()
        return self

    def call(self, request: Any, *, ticket: Any = None, deadline_s: Any = None) -> Appended | None:
        """Applies an append once. Any other request changes nothing here."""
        self.step()
        if not self.has_leader:
            raise Unavailable(Code.NO_LEADER, "no leader")
        if not isinstance(request, tuple):
            return None
        name = (ticket.book.session, ticket.sequence)
        if name not in self.answers:
            first, last = len(self.records) + 1, len(self.records) + len(request)
            self.records += request
            self.answers[name] = request, Appended(Outcome.APPLIED, "applied", first, last, len(request), last, 1)
            self.step()
            return self.answers[name][1]
        before, answer = self.answers[name]
        assert before == request, "a repeated request has the same bytes"
        self.step()
        return replace(answer, result="repeated")
