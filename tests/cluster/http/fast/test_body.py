"""Bodies that come in packets: which are waited for on the fast path, for how long; no byte is lost or doubled."""

from __future__ import annotations

import base64
from typing import cast

import pytest

from raftlog.cluster.http.fast import bounds, connection as fast_path
from raftlog.cluster.http.fast.byte_flow import ConnectionState
from tests.cluster.http.fast.fast_wire import Server, request

PUT = request("PUT", "/v1/kv/k", body=b"value")
GET = request("GET", "/v1/kv/k")


async def test_a_late_body_behind_another_request_is_cut_where_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its head came in one packet with a whole request, its body in two more, and another request behind it. Each is
    served once, as it was sent, whichever parser reads the late one. (Earlier bytes were once counted as part of it.)
    """
    monkeypatch.setattr(fast_path, "BODY_WAIT_SECONDS", 60.0)
    late = request("POST", "/v1/log", body=b"b" * 300)
    async with Server(fast_path=True) as server:
        wire = server.connect()
        await wire.feed(PUT + late[:-200], late[-200:-100])
        for _ in range(2):  # as if the moment were over in which the rest may come, and another without any of it
            timer = wire.protocol._body_timer  # type: ignore[attr-defined]
            timer._run()
            timer.cancel()
        assert wire.protocol._left == 100, "the rest that has not arrived"  # type: ignore[attr-defined]
        await wire.feed(late[-100:] + PUT + GET)  # a request as long as the one that was read before
        assert [reply.status for reply in wire.replies()] == [200] * 4
        assert wire.replies()[3].json()["kv"]["version"] == 2


async def test_a_large_body_in_many_packets_stays_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as something of it comes it is waited for, whatever else happens on the connection; nothing of it is lost
    or doubled. Guard: `_body` in `_advance`; the timer that is set again, and its bound."""
    monkeypatch.setattr(fast_path, "BODY_WAIT_SECONDS", 60.0)  # what it does then is asked for by name
    value = bytes(range(256)) * 400
    put = request("PUT", "/v1/kv/large", body=value)
    async with Server(fast_path=True, value_bytes_max=1 << 20) as server:
        wire = server.connect()
        connection = cast(fast_path.FastConnection, wire.protocol)
        await wire.feed(put[:300])
        for at in range(300, len(put), 20_000):
            await wire.feed(put[at : at + 20_000])
            if at == 300:
                connection._look_at_body()
                connection.pause_writing()
                connection.resume_writing()
        await wire.feed(GET.replace(b"/k ", b"/large "))
        assert wire.replies()[1].json()["kv"]["value_b64"] == base64.b64encode(value).decode()
        assert connection._handler is None
        await wire.feed(put[:300])
        connection._look_at_body()  # nothing came since
        assert connection._state is ConnectionState.SLOW
        await wire.feed(put[300:])
        monkeypatch.setattr(bounds, "BODY_WAITS_MAX", 1)
        await wire.feed(put[:300], put[300:400])
        connection._look_at_body()  # something did, but it takes long
        assert connection._state is ConnectionState.SLOW
        await wire.feed(put[400:])
        assert [reply.status for reply in wire.replies()] == [200] * 4
