"""Asks an HTTP server, over one connection that is kept, for the stores behind one."""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from raftlog.cluster.sinks.store import StoreError, StoreUnavailable, certificate_error

T = TypeVar("T")

_CERTIFICATES: Final = "the environment variable SSL_CERT_FILE"  # where Python finds authorities of them
_TIMEOUT_S: Final = 60.0
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
    """A server by its URL, which may have a user and a password. Messages call it `name`, or by its host."""

    def __init__(self, url: str, name: str | None = None, *, timeout_s: float = _TIMEOUT_S) -> None:
        """`timeout_s` is the longest wait for the bytes of an answer. Raises ValueError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.hostname is None or parts.query or parts.fragment:
            raise ValueError("url is http://HOST:PORT or https://HOST:PORT, perhaps with USER:PASSWORD@ before HOST")
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._name, self._timeout_s = name or self._host, timeout_s
        self._path = parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {b64encode(user.encode()).decode()}"
        self._connection: HTTPConnection | None = None

    def ask(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str] = {},
        bytes_max: int | None = None,
    ) -> ServerAnswer:
        """Sends a request and returns the answer, whatever its status, and of its body at most `bytes_max`.

        Over a kept connection that was lost meanwhile it is sent again at once. Raises StoreUnavailable; StoreError
        for a certificate that is not accepted.
        """
        while True:
            is_new = self._connection is None
            connection = self._connection = self._connection or self._made()
            try:
                connection.request(method, self._path + target, body, {**self._headers, **headers})
                response = connection.getresponse()
                answer = ServerAnswer(response.status, response.read(bytes_max))
                if not response.isclosed():
                    self.close()
                return answer
            except ssl.SSLCertVerificationError as error:
                self.close()
                raise certificate_error(self._name, error.verify_message, _CERTIFICATES) from error
            except (OSError, HTTPException) as error:
                self.close()
                if is_new or not isinstance(error, ConnectionError):
                    why = str(error) or type(error).__name__
                    raise StoreUnavailable(f"{self._name} does not answer: {why}") from error
            except BaseException:  # interrupted: an unread answer must not meet the next request
                self.close()
                raise

    def good(self, answer: ServerAnswer) -> ServerAnswer:
        """The answer, if its status is one of success. Raises StoreUnavailable, StoreError."""
        if answer.status < 300:
            return answer
        if answer.status in (401, 403):
            raise StoreError(f"{self._name} refuses the user of the url ({answer.status}): {answer.reason}")
        kind = StoreUnavailable if answer.status == 429 or answer.status >= 500 else StoreError
        raise kind(f"{self._name} answers {answer.status}: {answer.reason}")

    def read(self, decoder: Callable[[bytes], T], answer: ServerAnswer) -> T:
        """What a good answer says. Raises as `good`; StoreError for a body that is not what such a server says."""
        try:
            return decoder(self.good(answer).body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StoreError(f"{self._name} answers with something else than expected: {error}") from error

    def close(self) -> None:
        """Ends the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _made(self) -> HTTPConnection:
        kind = HTTPSConnection if self._secure else HTTPConnection
        return kind(self._host, self._port, timeout=self._timeout_s)
