"""Serves an object store for tests: the few requests of S3 that an export makes, in memory, with faults on demand.

moto would bring forty packages into the lock for the same. What a real store answers, versitygw shows in the long
tests (`.ci/store`). This one answers as it does, and can be stopped before or after each single request.
"""

import hashlib
import itertools
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.process import BaseProcess
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

import pytest

BUCKET = "bucket"


class Gone(Exception):
    """The store ends a connection without an answer."""


@dataclass(slots=True)
class Stored:
    """An object."""

    data: bytes
    modified: datetime

    @property
    def e_tag(self) -> str:
        """As S3 makes it of a small object."""
        return f'"{hashlib.md5(self.data, usedforsecurity=False).hexdigest()}"'


@dataclass
class Store:
    """A store with one bucket. `before` and `after` hear of each request, as `PUT log/…`, and may raise Gone."""

    objects: dict[str, Stored] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    ahead: timedelta = timedelta()  # its clock before ours
    refusal: tuple[int, str] | None = None  # status and code of every answer
    before: Callable[[str], None] = lambda _: None
    after: Callable[[str], None] = lambda _: None
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def names(self, prefix: str) -> list[str]:
        """The names of objects, without the prefix."""
        return sorted(name.removeprefix(prefix) for name in self.objects if name.startswith(prefix))

    def put(self, key: str, data: bytes, headers: Any) -> tuple[int, dict[str, str], bytes]:
        """Stores it, if the conditions hold."""
        found = self.objects.get(key)
        if headers.get("If-None-Match") == "*" and found is not None:
            return problem(412, "PreconditionFailed")
        if (due := headers.get("If-Match")) is not None and (found is None or found.e_tag != due):
            return problem(412, "PreconditionFailed")
        self.objects[key] = Stored(data, datetime.now(UTC) + self.ahead)
        return 200, {"ETag": self.objects[key].e_tag}, b""

    def get(self, key: str, headers: Any) -> tuple[int, dict[str, str], bytes]:
        """The object, or the bytes of it that are asked for."""
        if key not in self.objects:
            return problem(404, "NoSuchKey")
        found = self.objects[key]
        head = {"ETag": found.e_tag, "Last-Modified": found.modified.strftime("%a, %d %b %Y %H:%M:%S GMT")}
        if (span := headers.get("Range")) is None:
            return 200, head, found.data
        first, last = (int(number) for number in span.removeprefix("bytes=").split("-"))
        part = found.data[first : last + 1]
        return 206, head | {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(found.data)}"}, part

    def listed(self, query: dict[str, str]) -> bytes:
        """The page of all objects, or of one level, under a prefix."""
        prefix, parts, levels = query.get("prefix", ""), [], set()
        for name, each in sorted(self.objects.items()):
            if not name.startswith(prefix) or name <= query.get("start-after", ""):
                continue
            level, sign, _ = name.removeprefix(prefix).partition(query.get("delimiter", "\0"))
            if sign:
                levels.add(prefix + level + sign)
                continue
            parts.append(
                f"<Contents><Key>{escape(name)}</Key><LastModified>{each.modified:%Y-%m-%dT%H:%M:%S.000Z}"
                f"</LastModified><ETag>{escape(each.e_tag)}</ETag><Size>{len(each.data)}</Size></Contents>"
            )
        parts += [f"<CommonPrefixes><Prefix>{escape(level)}</Prefix></CommonPrefixes>" for level in sorted(levels)]
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(parts)}</ListBucketResult>".encode()


def killed_before(store: Store, process: BaseProcess, number: int) -> bool:
    """Runs a process, and kills it before its n-th change of the store. False if it has come to its end."""
    changes, is_dead = itertools.count(1), False

    def hear(what: str) -> None:
        nonlocal is_dead
        if is_dead or (what.startswith(("PUT", "POST")) and next(changes) == number):
            if not is_dead and process.pid is not None:
                os.kill(process.pid, signal.SIGKILL)
            is_dead = True
            raise Gone

    store.before = hear
    process.start()
    process.join()
    store.before = lambda _: None
    assert process.exitcode == (-signal.SIGKILL if is_dead else 0)
    return is_dead


def problem(status: int, code: str) -> tuple[int, dict[str, str], bytes]:
    """The answer to what cannot be done."""
    return status, {}, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()


@contextmanager
def storing(patch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store that runs, and whose address and credentials are in the environment."""
    store = Store()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet

        def do_any(self) -> None:
            with suppress(Gone, ConnectionError):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                url = urlsplit(self.path)
                query = dict(parse_qsl(url.query, keep_blank_values=True))
                bucket, _, key = unquote(url.path).removeprefix("/").partition("/")
                what = f"{self.command} {key or 'list'}"
                with store.lock:
                    store.asked.append(what)
                store.before(what)
                with store.lock:
                    status, headers, answer = self.carried_out(bucket, key, body, query)
                store.after(what)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(b"" if self.command == "HEAD" else answer)
                return
            self.close_connection = True

        do_GET = do_HEAD = do_PUT = do_POST = do_any

        def carried_out(
            self, bucket: str, key: str, body: bytes, query: dict[str, str]
        ) -> tuple[int, dict[str, str], bytes]:
            if store.refusal is not None:
                return problem(*store.refusal)
            if bucket != BUCKET:
                return problem(404, "NoSuchBucket")
            if self.command == "PUT":
                return store.put(key, body, self.headers)
            if self.command == "POST" and "delete" in query:
                names = re.findall(r"<Key>(.+?)</Key>", body.decode())
                for name in names:
                    del store.objects[unescape(name)]
                gone = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
                return 200, {}, f"<DeleteResult>{gone}</DeleteResult>".encode()
            return store.get(key, self.headers) if key else (200, {}, store.listed(query))

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    store.url = f"http://127.0.0.1:{server.server_port}"
    for name, value in {"ACCESS_KEY_ID": "user", "SECRET_ACCESS_KEY": "secret", "ENDPOINT_URL": store.url}.items():
        patch.setenv(f"AWS_{name}", value)
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
