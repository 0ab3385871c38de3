"""Provides a service that takes the requests of a webhook, and gives the answers that a test sets, or none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple

from tests.support import http_served

SECRET = "hidden"


class Request(NamedTuple):
    """One request as it arrived."""

    key: str
    signature: str
    body: bytes

    @property
    def told(self) -> Any:
        """The body."""
        return json.loads(self.body)


class Service:
    """The service. `answers`: for each of the next requests a status, 0 to hang up after it was read."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answers: list[int] = []
        self.refused: set[str] = set()  # ids of rows that are answered with 400
        self.url = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Notes the request, and answers it."""
        assert handler.path == "/hook?to=me"
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        self.requests.append(Request(handler.headers["Idempotency-Key"], handler.headers["Raftlog-Signature"], body))
        told = json.loads(body)
        ids = {each["key"]["id"] for each in (told if isinstance(told, list) else [told]) if each["key"]}
        status = self.answers.pop(0) if self.answers else 400 if ids & self.refused else 204
        if not status:
            handler.close_connection = True
            return
        text = b"" if status == 204 else b"because of the test" + b"." * 1_000
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    @property
    def rows(self) -> dict[str, Any]:
        """The rows of a receiver that takes each request with a new Idempotency-Key."""
        kept: dict[str, Any] = {}
        for request in {each.key: each for each in self.requests}.values():
            for told in request.told if isinstance(request.told, list) else [request.told]:
                if told["truncated"]:
                    kept.clear()
                elif told["row"] is None:
                    kept.pop(told["key"]["id"], None)
                else:
                    kept[told["key"]["id"]] = told["row"]
        return kept


@contextmanager
def webhook_served() -> Iterator[Service]:
    """A running service."""
    service = Service()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            service.answer(self)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with http_served(Handler) as url:
        service.url = f"{url}/hook?to=me"
        yield service
