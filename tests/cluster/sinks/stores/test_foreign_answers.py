"""What stores behind HTTP make of answers that no such server gives: an error of a store, and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from raftlog.cluster.sinks.changes import RowChanges, StorePosition
from raftlog.cluster.sinks.settings import OpenSearchSettings, WebhookSettings
from raftlog.cluster.sinks.store import DroppableStore, SinkStore, StoreError
from raftlog.cluster.sinks.stores import bulk
from raftlog.cluster.sinks.stores.http import HttpServer, ServerAnswer
from tests.cluster.sinks.stores.kit import SINK, StoreBench, put
from tests.cluster.sinks.stores.test_opensearch_bulk import FakeServer

BODIES = (
    b"",
    b"\xff",
    b"<html>",
    b"null",
    b"7",
    b'"text"',
    b"[]",
    b"[1]",
    b"{}",
    b'{"rows":{}}',
    b'{"rows":{"mappings":{},"settings":{},"aliases":{}}}',
    b'{"error":null}',
    b'{"error":[]}',
    b'{"error":{}}',
    b'{"error":{"reason":7}}',
    b'{"items":[]}',
    b'{"items":[{}]}',
    b'{"items":[{"index":{"status":409}},{"index":{"status":409}}]}',
)
STATUSES = (200, 300, 400, 401, 404, 409, 429, 503)


@pytest.mark.parametrize("body", BODIES)
def test_the_reason_of_any_answer_is_a_text(body: bytes) -> None:
    """Whatever a proxy or another program writes."""
    assert isinstance(ServerAnswer(500, body).reason, str)


def write(store: SinkStore) -> None:
    """One batch of a new sink."""
    store.open(SINK, 1)
    store.write(RowChanges((put(1, "a"),)), None, StorePosition(2))


def read(store: SinkStore) -> None:
    """All rows."""
    with store.rows(SINK) as found:
        if found is not None:
            list(found.rows)


def drop(store: DroppableStore) -> None:
    """Everything of the sink."""
    store.drop(SINK)


CALLS: tuple[Callable[[Any], None], ...] = (write, read, drop)
SETTINGS: dict[Any, dict[str, Any]] = {OpenSearchSettings: {"index": "rows"}, WebhookSettings: {"secret": "$SECRET"}}


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_strange_answer_is_an_error_of_the_store(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of each answer, and of all after it: StoreError or none."""
    monkeypatch.setenv("SECRET", "s")
    monkeypatch.setattr(bulk, "PAUSE_MAX_S", 0.001)
    asked = first = 0
    answer = ServerAnswer(0, b"")

    def ask(_: object, method: str, target: str, body: bytes | None = None, *__: object) -> ServerAnswer:
        nonlocal asked
        asked += 1
        return answer if asked > first else ServerAnswer(*server.answer(method, target, body or b""))

    monkeypatch.setattr(HttpServer, "ask", ask)
    with FakeServer() as server:
        bench = StoreBench(kind, tmp_path, url=server.url, **SETTINGS[kind])
        for call in CALLS:
            first, steps = 0, 1
            while first < steps:
                for status, body in itertools.product(STATUSES, BODIES):
                    asked, answer = 0, ServerAnswer(status, body)
                    with closing(bench.store()) as store, suppress(StoreError):
                        call(store)
                    steps = max(steps, asked)
                first += 1
