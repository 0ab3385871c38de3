"""Reads a stream of server-sent events over HTTP, and connects again after the last event that it saw.

`raftlog.cluster.importer.sources` offers it as a source. The format is that of the HTML standard, section 9.2.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from raftlog.cluster.client.new_records import NewRecord
from raftlog.cluster.importer.source import Part, SourceError

RETRY_S: Final = 1.0
"""Pause before a new connection, in seconds. The server may name another."""

EVENT_BYTES_MAX: Final = 1 << 20
_TIMEOUT_S: Final = 60.0


class Events:
    """The events of a URL: the data is the value, the type of the event a header, the id the position.

    After a lost connection the server gets the last id as `Last-Event-ID`, and sends what follows. An event without an
    id ends the copy, because nothing could be continued after it.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self.name = url
        self.reads_ahead = True
        self._headers = dict(headers or {})
        self._stopped = threading.Event()
        self._retry_s = RETRY_S

    def close(self) -> None:
        """Ends the reading at the next event or lost connection."""
        self._stopped.set()

    def read(self, position: Any | None) -> Iterator[Part]:
        """The events after the id. Raises SourceError if the server refuses, or an event has no id."""
        last = None if position is None else str(position)
        while not self._stopped.is_set():
            try:
                for part in self._connected(last):
                    if part.position != last:  # some servers begin with the last event again
                        yield part
                    last = part.position
            except _StreamEnded:
                return
            except (OSError, http.client.HTTPException):
                pass  # the connection is lost
            self._stopped.wait(self._retry_s)

    def _connected(self, last: str | None) -> Iterator[Part]:
        place = urlsplit(self.name)
        kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
        connection = kind(place.hostname or "", place.port, timeout=_TIMEOUT_S)
        try:
            given = {"Accept": "text/event-stream", "Cache-Control": "no-store"} | self._headers
            given |= {} if last is None else {"Last-Event-ID": last}
            connection.request("GET", f"{place.path or '/'}{f'?{place.query}' if place.query else ''}", headers=given)
            with connection.getresponse() as response:
                if response.status == http.client.NO_CONTENT:
                    raise _StreamEnded
                if response.status >= http.client.INTERNAL_SERVER_ERROR:
                    return
                content_type = response.getheader("Content-Type", "")
                if response.status != http.client.OK or "text/event-stream" not in content_type:
                    raise SourceError(
                        f"{self.name} answers {response.status} {content_type}: it must be 200 with text/event-stream"
                    )
                yield from self._events(response)
        finally:
            connection.close()

    def _events(self, response: http.client.HTTPResponse) -> Iterator[Part]:
        data: list[bytes] = []
        kind, number = b"", None
        size = 0
        while line := response.readline(EVENT_BYTES_MAX + 1):
            size += len(line)
            if size > EVENT_BYTES_MAX:
                raise SourceError(f"{self.name}: an event has more than {EVENT_BYTES_MAX} bytes")
            name, _, value = line.rstrip(b"\r\n").partition(b":")
            value = value.removeprefix(b" ")
            if line in (b"\n", b"\r\n"):
                if data:
                    if number is None:
                        raise SourceError(
                            f"{self.name}: an event has no id, so a copy could not continue exactly once after it; "
                            f"let the server send ids"
                        )
                    headers = (("event", kind),) if kind else ()
                    yield Part((NewRecord(b"\n".join(data), None, headers),), number)
                data, kind, size, number = [], b"", 0, None
            elif name == b"data":
                data.append(value)
            elif name == b"event":
                kind = value
            elif name == b"id" and b"\0" not in value:
                number = value.decode("utf-8", "replace")
            elif name == b"retry" and value.isdigit():
                self._retry_s = int(value) / 1000


class _StreamEnded(Exception):
    """The server says that the stream has ended (204)."""
