"""Asks an HTTP server, over one connection that is kept, for the stores behind one."""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from raftlog.cluster.runtime import clock
from raftlog.cluster.sinks.store import StoreError, StoreUnavailable, certificate_error

T = TypeVar("T")

CERTIFICATES: Final = "the environment variable SSL_CERT_FILE"
"""Where Python finds authorities of certificates."""

TIMEOUT_S: Final = 60.0
"""Longest wait for the bytes of an answer."""

_IDLE_S: Final = 10.0  # after which a proxy may have closed the connection
_SHOWN_MAX: Final = 300


class ServerAnswer(NamedTuple):
    """A status and the body."""

    status: int
    body: bytes

    @property
    def reason(self) -> str:
        """What an error says, as OpenSearch and Elasticsearch write it."""
        try:
            error = msgspec.json.decode(self.body)["error"]
            return str(error["reason"] if isinstance(error, dict) else error)
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError):
            return self.body[:_SHOWN_MAX].decode("utf-8", "replace")


class HttpServer:
    """A server by its URL, which may have a user and a password."""

    def __init__(self, url: str) -> None:
        """Raises ValueError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.hostname is None or parts.query or parts.fragment:
            raise ValueError("url is http://HOST:PORT or https://HOST:PORT, perhaps with USER:PASSWORD@ before HOST")
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._path = parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {b64encode(user.encode()).decode()}"
        self._connection: HTTPConnection | None = None
        self._used_s = 0.0

    def ask(self, method: str, target: str, body: bytes | None = None) -> ServerAnswer:
        """Sends a request and returns the answer, whatever its status. Raises StoreUnavailable; StoreError for a
        certificate that is not accepted."""
        if clock.monotonic() > self._used_s + _IDLE_S:
            self.close()
        try:
            if self._connection is None:
                self._connection = self._made()
            self._connection.request(method, self._path + target, body, self._headers)
            response = self._connection.getresponse()
            answer = ServerAnswer(response.status, response.read())
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise certificate_error(self._host, error.verify_message, CERTIFICATES) from error
        except (OSError, HTTPException) as error:
            self.close()
            raise StoreUnavailable(f"{self._host} does not answer: {str(error) or type(error).__name__}") from error
        except BaseException:  # interrupted: an unread answer must not meet the next request
            self.close()
            raise
        self._used_s = clock.monotonic()
        return answer

    def good(self, answer: ServerAnswer) -> ServerAnswer:
        """The answer, if its status is one of success. Raises StoreUnavailable, StoreError."""
        if answer.status < 300:
            return answer
        if answer.status in (401, 403):
            raise StoreError(f"{self._host} refuses the user of the url ({answer.status}): {answer.reason}")
        kind = StoreUnavailable if answer.status == 429 or answer.status >= 500 else StoreError
        raise kind(f"{self._host} answers {answer.status}: {answer.reason}")

    def read(self, decoder: Callable[[bytes], T], answer: ServerAnswer) -> T:
        """What a good answer says. Raises as `good`; StoreError for a body that is not what such a server says."""
        try:
            return decoder(self.good(answer).body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StoreError(f"{self._host} answers with something else than expected: {error}") from error

    def close(self) -> None:
        """Ends the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _made(self) -> HTTPConnection:
        more: dict[str, Any] = {"timeout": TIMEOUT_S}
        if self._secure:
            return HTTPSConnection(self._host, self._port, context=ssl.create_default_context(), **more)
        return HTTPConnection(self._host, self._port, **more)
