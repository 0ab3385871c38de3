"""Every call of both clients as the bytes that it sends: both send the same, and each argument changes them."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest

from raftlog.cluster.api.errors import Code
from raftlog.cluster.api.headers import H_DEADLINE
from raftlog.cluster.api.kv import TxnIn
from raftlog.cluster.api.members import ChangeIn
from raftlog.cluster.client import requests
from raftlog.cluster.client.aio.client import Client
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.decisions import Policy
from raftlog.cluster.client.errors import ClientError
from raftlog.cluster.client.new_records import NewRecord
from tests.cluster.client.test_decisions import problem
from tests.support import HANG_S, streams_served

SEEN = 4_321
"""What both clients have seen of the log before each call."""
INSTEAD: Mapping[str, tuple[Any, Any]] = {
    "int": (3, 5),
    "bool": (False, True),
    "bytes": (b"b", b"c"),
    "str": ("s", "t"),
    "float": (9.0, 8.0),
    "Sequence[tuple[str, bytes]]": ((), (("h", b"1"),)),
    "Sequence[NewRecord]": ((NewRecord(b"1"),), (NewRecord(b"2"),)),
    "Consistency": ("linearizable", "stale"),
    "TxnIn": (TxnIn(then=[requests.step("put", b"a", b"1")]), TxnIn(then=[requests.step("put", b"b", b"1")])),
    "member_types.ChangeIn": (ChangeIn("remove", node=2), ChangeIn("remove", node=3)),
}
"""By the type of an argument: what it is, where a call needs one, and another value."""
NO_REQUEST = {"call", "close", "consumer", "discover", "stream"}
OF_THE_READER = {"progress"}  # it chooses among the items of the answer


def calls() -> list[Any]:
    """(Name, arguments, the one that the call does not need or None) of all calls of both clients."""
    found = []
    for name in sorted({*dir(Client), *dir(SyncClient)}):
        function = getattr(Client, name, None) or getattr(SyncClient, name)
        if name.startswith("_") or name in NO_REQUEST or not inspect.isfunction(function):
            continue
        parameters = {key: each for key, each in inspect.signature(function).parameters.items() if key != "self"}
        kinds = {key: each.annotation.split(" | ")[0] for key, each in parameters.items()}
        needed = {key: INSTEAD[kinds[key]][0] for key, each in parameters.items() if each.default is each.empty}
        found.append(pytest.param(name, needed, {}, id=name))
        found += [
            pytest.param(name, needed, {key: INSTEAD[kind][1]}, id=f"{name}({key})")
            for key, kind in kinds.items()
            if key not in OF_THE_READER
        ]
    return found


CALLS = calls()
assert len(CALLS) > 60  # and not empty by mistake


class Listener:
    """A node that refuses everything, and keeps what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self._asked: list[bytes] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Reads requests until the client ends the connection."""
        with suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = dict(line.split(b": ", 1) for line in head.lower().splitlines()[1:-1])
                body = await reader.readexactly(int(lines.get(b"content-length", b"0")))
                self._asked.append(head + body)
                told = msgspec.json.encode(problem(Code.BAD_REQUEST))
                writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/problem+json\r\n")
                writer.write(b"Content-Length: %d\r\n\r\n" % len(told) + told)

    def asked(self) -> bytes:
        """The one request since the last call of this."""
        (found,) = self._asked
        self._asked.clear()
        return found


@asynccontextmanager
async def listener() -> AsyncIterator[Listener]:
    """One that listens."""
    found = Listener()
    async with streams_served(found.answer) as port:
        found.url = f"http://127.0.0.1:{port}"
        yield found


async def sent(server: Listener, name: str, given: Mapping[str, Any]) -> dict[str, bytes]:
    """What the clients that have this method send for that call, by their names."""
    found = {}
    # a deadline that a loaded machine does not shorten within a call
    more: dict[str, Any] = {"sessions": False, "deadline_s": HANG_S, "policy": Policy(attempt_ms=10**7)}
    if hasattr(Client, name):
        async with Client(server.url, **more) as client:
            client.state.index = SEEN
            made = getattr(client, name)(**given)
            if inspect.isasyncgen(made):
                made = anext(made)
            with pytest.raises(ClientError):
                await made
        found["Client"] = server.asked()
    if hasattr(SyncClient, name):
        await asyncio.to_thread(blocking, server.url, more, name, given)
        found["SyncClient"] = server.asked()
    return found


def blocking(url: str, more: Mapping[str, Any], name: str, given: Mapping[str, Any]) -> None:
    """Makes the call with the blocking client."""
    with SyncClient(url, **more) as client:
        client.state.index = SEEN
        with pytest.raises(ClientError):
            list(getattr(client, name)(**given))


_DEADLINE = re.compile(H_DEADLINE.encode() + rb": ([0-9]+)\r\n")


def deadline_ms(request: bytes) -> int:
    """The deadline that the request names."""
    (found,) = _DEADLINE.findall(request)
    return int(found)


def without_deadline(request: bytes) -> bytes:
    """The request without what the time that went by changes."""
    return _DEADLINE.sub(b"", request)


@pytest.mark.parametrize(("name", "needed", "more"), CALLS)
async def test_both_clients_send_the_same_and_each_argument_changes_it(
    name: str, needed: Mapping[str, Any], more: Mapping[str, Any]
) -> None:
    """A call with one argument more or another one is another request; a stream, and a read that need not be the
    newest, name the newest index that the client has seen."""
    async with listener() as server:
        found = await sent(server, name, {**needed, **more})
        assert len({without_deadline(each) for each in found.values()}) == 1, found
        request = found.popitem()[1]
        if more:
            plain = (await sent(server, name, needed)).popitem()[1]
            if "deadline_s" in more:
                assert deadline_ms(request) <= more["deadline_s"] * 1_000 < deadline_ms(plain)
            else:
                assert without_deadline(request) != without_deadline(plain)
        is_late = more.get("consistency") == "stale" or name in ("log", "log_raw")
        if is_late and "min_index" not in more:
            assert b"min_index=%d" % SEEN in request.splitlines()[0]
