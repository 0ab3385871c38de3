"""A worker thread decodes and encodes large batches: what goes into the log is the same as by the event loop."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from raftlog.cluster.api.headers import H_TIME, JSON, MSGPACK, NDJSON
from raftlog.cluster.http.exchange import outcomes
from raftlog.cluster.http.routes import append
from tests.cluster.fake_node import serve
from tests.cluster.http.access_world import ADMIN, AccessWorld
from tests.cluster.http.http_probe import ask, of_session

BATCHES = {
    JSON: b'[{"value":"a"},{"value":"b","key":"k"},{"value":"c","headers":[["h","1"]]}]',
    f"{JSON} of values alone": b'[{"value":"a"},{"value":"b"}]',
    NDJSON: b'{"value":"a"}\n{"value":"b","time_ms":9}\n',
    MSGPACK: msgspec.msgpack.encode([b"a", b"b"]),
}
WRITES = {
    "transaction": (
        "POST",
        "/v1/kv/txn",
        b'{"compare":[],"then":[{"operation":"put","key":"a","value":"v"}],"else":[]}',
    ),
    **{name: ("POST", "/v1/log", body) for name, body in BATCHES.items()},
}


@pytest.mark.parametrize("is_set_up", [True, False], ids=["access", "open"])
@pytest.mark.parametrize("has_session", [True, False], ids=["session", "plain"])
async def test_a_batch_is_the_same_entry_whoever_decodes_and_encodes_it(
    is_set_up: bool, has_session: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its session, time and user, encoded by the event loop and by a worker thread, in every form of a body."""
    world = AccessWorld(is_set_up=is_set_up)
    blocks: list[bytes] = []
    submit = world.node.submit

    def submitted(block: bytes, count: int, **more: Any) -> Any:
        blocks.append(block)
        return submit(block, count, **more)

    monkeypatch.setattr(world.node, "submit", submitted)
    token = {"Authorization": f"Bearer {world.tokens[ADMIN].text}"} if is_set_up else {}
    async with serve(world.node) as served:
        opened = await ask(served.port, "POST", "/v1/sessions", b"", token)
        session = int(opened.json()["session"])
        for sequence, (name, (method, target, body)) in enumerate(WRITES.items(), start=1):
            named = of_session(session, sequence, 1) if has_session else {}
            kind = name.partition(" ")[0] if name in BATCHES else JSON
            headers = {**token, **named, H_TIME: "7", "Content-Type": kind}
            blocks.clear()
            answers = []
            for bytes_max, records_max in ((1 << 20, 1_000), (0, 0)):
                monkeypatch.setattr(append, "_LOOP_BYTES", bytes_max)
                monkeypatch.setattr(outcomes, "_LOOP_RECORDS", records_max)
                answers.append(await ask(served.port, method, target, body, headers))
            assert [each.status for each in answers] == [200, 200], (name, answers[0].json())
            first, again = blocks
            assert first == again, name
