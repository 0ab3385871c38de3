"""schemathesis over openapi.yaml: whatever is sent, valid or not, gets an answer that the document describes."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
import yaml
from schemathesis import GenerationMode

from raftlog.cluster.api.values import LeaderHint
from raftlog.cluster.http.routes.operator import OPENAPI
from raftlog.cluster.security.tokens import digest_of, make_token
from raftlog.statemachine.access.commands import AccessAction, AccessCommand
from tests.cluster.fake_node import FakeNode, serve
from tests.cluster.http.access_world import ADMIN, change_access, raise_version

WAIT_MS = 20  # the server's bounds of long polls and deadlines, so that none makes this slow

SCHEMA = schemathesis.openapi.from_dict(yaml.safe_load(OPENAPI)).exclude(path="/v1/watch")  # a stream never ends
SCHEMA.config.generation.update(
    modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE], deterministic=True, allow_extra_parameters=False
)

CHECKS = [
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_schema_conformance,
    schemathesis.checks.negative_data_rejection,
]


TOKENS = {role: make_token() for role in ("admin", "nobody", "reader", "writer", "operator")}
ROLES = itertools.cycle(("admin", "admin", "nobody", "admin", "reader", "admin", "writer", "operator"))


class Alone(FakeNode):
    """Leads again after each hand-over: there is no other node to which a later request could be passed on."""

    async def transfer(self, to: int, deadline: float) -> float:
        """As if it had come back at once."""
        seconds = await super().transfer(to, deadline)
        self.leader = LeaderHint(self.node_id, self.url)
        return seconds


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The URL of a fake node served by a thread, because schemathesis blocks."""
    ready: list[str] = []
    started = threading.Event()
    stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def run() -> None:
        async with serve(
            set_up(Alone()), wait_max_ms=WAIT_MS, deadline_max_ms=WAIT_MS, deadline_default_ms=WAIT_MS
        ) as served:
            end = asyncio.Event()
            stop.append((asyncio.get_running_loop(), end))
            ready.append(served.url)
            started.set()
            await end.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert started.wait(10)
    yield ready[0]
    loop, end = stop[0]
    loop.call_soon_threadsafe(end.set)
    thread.join(10)


def set_up(node: FakeNode) -> FakeNode:
    """A user of each role with a token; of an admin several, so that most requests get through the gate."""
    raise_version(node)
    change_access(node, AccessCommand(AccessAction.INIT, ADMIN, token="first", token_hash=digest_of("first")))
    for role, token in TOKENS.items():
        change_access(node, AccessCommand(AccessAction.SET_USER, role, roles=() if role == "nobody" else (role,)))
        change_access(
            node,
            AccessCommand(AccessAction.ADD_TOKEN, role, token=token.identifier, token_hash=token.digest, label=role),
        )
    return node


@pytest.fixture(scope="module")
def connection() -> Iterator[requests.Session]:
    """One connection kept open for all requests."""
    with requests.Session() as session:
        yield session


@SCHEMA.parametrize()
@hypothesis.settings(max_examples=15, suppress_health_check=list(hypothesis.HealthCheck))
def test_every_answer_is_described(case: schemathesis.Case[Any], url: str, connection: requests.Session) -> None:
    """Positive and negative requests, of users of every role: no 5xx but for a deadline, no answer that is not in
    openapi.yaml."""
    token = TOKENS[next(ROLES)]
    response = case.call(base_url=url, session=connection, headers={"Authorization": f"Bearer {token.text}"})
    if response.status_code in (503, 504) and response.json()["code"] in ("deadline", "timeout"):
        return
    case.validate_response(response, checks=CHECKS)
    if response.status_code < 400:
        assert int(response.headers["raftlog-index"][0]) >= 1
