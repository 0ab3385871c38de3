"""Whatever stands in the place of a name in the path of any route: an answer that is no fault of the node."""

from __future__ import annotations

import re

import pytest

from raftlog.cluster.http.routes.table import ROUTES
from tests.cluster.fake_node import serve
from tests.cluster.http.access_world import valid
from tests.cluster.http.http_probe import ask

PARTS = (
    "",
    "%FF",
    "%00",
    "%0A",
    "%C3",
    "%ED%A0%80",
    "%E2%80%AE",
    "%2F",
    "..",
    "%",
    "%zz",
    "-1",
    "0",
    "9" * 40,
    "x" * 600,
)
NAMED = [(route.method, route.pattern) for route in ROUTES if "{" in route.pattern]
NO_NAME = {"", "%FF", "%00", "%0A", "%C3", "%ED%A0%80", "%E2%80%AE"}
"""No text, or text that cannot be seen: no consumer group has such a name."""


@pytest.mark.parametrize(("method", "pattern"), NAMED)
async def test_any_bytes_as_a_part_of_the_path_are_taken_or_refused(method: str, pattern: str) -> None:
    """On the fast path and through aiohttp."""
    target, body = valid(method, pattern)
    for fast_path in (True, False):
        async with serve(fast_path=fast_path) as served:
            for part in PARTS:
                at = part.join(re.split(r"\{[a-z]+\}", pattern))
                _, mark, query = target.partition("?")
                reply = await ask(served.port, method, at + mark + query, body)
                assert reply.status < 500, (part, reply)
                if pattern.startswith("/v1/consumers/"):
                    assert reply.status >= 400 or part not in NO_NAME, (part, reply)
