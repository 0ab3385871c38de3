"""Writes to a node from tests of the console, as any program would."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import Request, urlopen

from tests.support import HANG_S


def sent(
    url: str, method: str, target: str, body: object = b"", kind: str = "application/octet-stream"
) -> dict[str, Any]:
    """The answer to a request that succeeds. Bytes are the body as they are, all else is JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    if not isinstance(body, bytes):
        kind = "application/json"
    with urlopen(Request(url + target, data, {"Content-Type": kind}, method=method), timeout=HANG_S) as answer:
        found: dict[str, Any] = json.load(answer)
        return found
