"""Each item of a bulk answer decides: a busy server is asked again, and a refused document stops the batch."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.sinks.changes import RowChange, RowChanges, StorePosition
from raftlog.cluster.sinks.runner import SinkStopped
from raftlog.cluster.sinks.settings import OpenSearchSettings, SinkSettingsError
from raftlog.cluster.sinks.store import RowsRefused, StoreError, StoreUnavailable
from raftlog.cluster.sinks.stores import bulk, opensearch
from tests.cluster.sinks.stores.kit import SINK, StoreBench, expired, put

SETTINGS = {"index": {"gc_deletes": "1h", "uuid": "u"}}
INDEX = {"rows": {"aliases": {}, "mappings": {"_meta": {"raftlog": "s"}}, "settings": SETTINGS}}
MAPPING = {"type": "mapper_parsing_exception", "reason": "failed to parse", "caused_by": {"type": "x", "reason": "bad"}}


class FakeServer(ThreadingHTTPServer):
    """Answers as an index without documents would; `answers` are those of the next bulk requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[Callable[[list[str]], tuple[int, bytes]]] = []
        self.bulks: list[list[str]] = []
        self.sizes: list[int] = []
        self.authorization: str | None = None
        self.sequence = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """The answer to a request; none closes the connection."""
        if "/_bulk" in path:
            ids = [json.loads(line)["index"]["_id"] for line in body.splitlines() if line.startswith(b'{"index":{"_id')]
            self.bulks.append(ids)
            self.sizes.append(len(body))
            return self.answers.pop(0)(ids) if self.answers else items()(ids)
        if method == "PUT" and "/_doc/" in path:
            self.sequence += 1
            return 200, json.dumps({"_seq_no": self.sequence, "_primary_term": 1}).encode()
        return (200, json.dumps(INDEX).encode()) if path == "/rows" or method == "PUT" else (404, b"{}")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def do_GET(self) -> None:
        self.server.authorization = self.headers.get("Authorization")
        size = int(self.headers.get("Content-Length", 0))
        status, body = self.server.answer(self.command, self.path, self.rfile.read(size))
        self.send_response(status or 200)
        self.send_header("Content-Length", str(len(body) if status else 99))
        self.end_headers()
        self.wfile.write(body if status else b"{")
        self.close_connection = not status

    do_PUT = do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def items(**given: tuple[int, dict[str, Any]]) -> Callable[[list[str]], tuple[int, bytes]]:
    """An answer in which these documents have a status and an error, and the others are well."""

    def answer(ids: list[str]) -> tuple[int, bytes]:
        found = [
            {"index": {"status": given[each][0], "error": given[each][1]} if each in given else {"status": 201}}
            for each in ids
        ]
        return 200, json.dumps({"items": found}).encode()

    return answer


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A running fake server."""
    with FakeServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses."""
    monkeypatch.setattr(bulk, "PAUSE_MAX_S", 0.001)


Write = Callable[..., None]


@pytest.fixture
def write(server: FakeServer, tmp_path: Path) -> Iterator[Write]:
    """Writes rows with these keys."""
    with closing(StoreBench(OpenSearchSettings, tmp_path, url=server.url, index="rows").store()) as store:
        assert store.open(SINK, 1) is None

        def write(*keys: str) -> None:
            rows = tuple(put(index, key) for index, key in enumerate(keys, 1))
            store.write(RowChanges(rows), None, StorePosition(len(keys) + 1))

        yield write


def test_only_what_a_busy_server_rejects_is_sent_again(server: FakeServer, write: Write) -> None:
    """With status 429 or 503 of the item; a conflict is a success."""
    full: dict[str, Any] = {"type": "rejected_execution_exception", "reason": "full"}
    conflict = {"type": "version_conflict_engine_exception", "reason": "higher"}
    server.answers = [items(b=(429, full), c=(503, full), d=(409, conflict)), items(c=(429, full))]
    write("a", "b", "c", "d")
    assert server.bulks == [["a", "b", "c", "d"], ["b", "c"], ["c"]]
    assert server.sequence == 2


def test_a_server_that_stays_busy_is_tried_later(server: FakeServer, write: Write) -> None:
    """After some attempts; the position does not move."""
    full = items(b=(429, {"type": "rejected_execution_exception", "reason": "full"}))
    server.answers = [full] * bulk.ATTEMPTS_MAX
    with pytest.raises(StoreUnavailable, match="rows has rejected 1 documents because it is busy"):
        write("a", "b")
    assert len(server.bulks) == bulk.ATTEMPTS_MAX
    assert server.sequence == 1


def test_a_document_that_is_refused_is_named_with_the_reason(server: FakeServer, write: Write) -> None:
    """All of them, of all requests of the batch."""
    server.answers = [items(b=(400, MAPPING), c=(400, MAPPING))]
    with pytest.raises(RowsRefused, match="index 2, key b: failed to parse: bad; and 1 more") as raised:
        write("a", "b", "c")
    assert [each.change.index for each in raised.value.refusals] == [2, 3]
    assert server.sequence == 1


@pytest.mark.parametrize(
    ("item", "kind"),
    [
        ((403, {"type": "security_exception", "reason": "no permissions"}), StoreError),
        ((403, {"type": "cluster_block_exception", "reason": "index read-only"}), StoreError),
        ((404, {"type": "index_not_found_exception", "reason": "no such index"}), StoreUnavailable),
        ((400, {"type": "index_closed_exception", "reason": "closed"}), StoreError),
        ((500, {"type": "io_exception", "reason": "No space left on device"}), StoreUnavailable),
    ],
)
def test_an_error_of_the_index_is_no_refusal_of_a_row(
    server: FakeServer, write: Write, item: tuple[int, dict[str, str]], kind: type[StoreError]
) -> None:
    """Else a sink that rejects refused rows would reject all of them."""
    server.answers = [items(a=item)]
    with pytest.raises(StoreError, match=item[1]["reason"]) as raised:
        write("a")
    assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (0, b"", StoreUnavailable, r"127.0.0.1 does not answer: IncompleteRead\(1 bytes read, 98 more expected\)"),
        (502, b"<html>bad gateway", StoreUnavailable, "127.0.0.1 answers 502: <html>bad gateway"),
        (429, b'{"error": "busy"}', StoreUnavailable, "127.0.0.1 answers 429: busy"),
        (401, b'{"error": {"reason": "bad password"}}', StoreError, r"refuses the user .* \(401\): bad password"),
        (413, b"", StoreError, "127.0.0.1 answers 413"),
        (200, b"<html>", StoreError, "127.0.0.1 answers with something else than expected"),
        (200, b'{"items": []}', StoreUnavailable, "rows answers 0 of 2 documents"),
    ],
)
def test_an_answer_that_is_none_moves_no_position(
    server: FakeServer, write: Write, status: int, body: bytes, kind: type[StoreError], message: str
) -> None:
    """Lost, of a proxy, of a server without room, of a wrong password, of another server."""
    server.answers = [lambda _: (status, body)]
    with pytest.raises(StoreError, match=message) as raised:
        write("a", "b")
    assert type(raised.value) is kind
    assert server.sequence == 1


def test_a_request_has_a_bounded_size(server: FakeServer, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is several requests, and the position moves after the last one."""
    monkeypatch.setattr(bulk, "BULK_BYTES_MAX", 1000)
    write(*(f"key-{number}" for number in range(100)))
    assert max(server.sizes) <= 1000
    assert len(server.bulks) > 10
    assert sum(map(len, server.bulks)) == 100


def test_a_url_may_have_a_user_and_a_path(server: FakeServer, tmp_path: Path) -> None:
    """From a file, as any secret; a url that is none is refused without showing it."""
    (tmp_path / "url").write_text(server.url.replace("//", "//ada:p%40ss@"))
    with closing(StoreBench(OpenSearchSettings, tmp_path, url="@url", index="rows").store()) as store:
        store.open(SINK, 1)
    assert server.authorization == "Basic YWRhOnBAc3M="
    (tmp_path / "url").write_text("ada:secret@host")
    with pytest.raises(SinkSettingsError, match="url is http://HOST:PORT or https") as raised:
        StoreBench(OpenSearchSettings, tmp_path, url="@url", index="rows").store()
    assert "secret" not in str(raised.value)


def test_a_server_that_is_away_is_waited_for(tmp_path: Path) -> None:
    """With its name."""
    with FakeServer() as server:
        url = server.url
    with closing(StoreBench(OpenSearchSettings, tmp_path, url=url, index="rows").store()) as store:
        with pytest.raises(StoreUnavailable, match=r"127.0.0.1 does not answer: .*refused"):
            store.open(SINK, 1)


@contextmanager
def encrypted(server: FakeServer, file: Path) -> Iterator[str]:
    """The https URL of the server, which has the certificate of the file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    plain = server.socket
    server.socket = context.wrap_socket(plain, server_side=True)
    try:
        yield server.url.replace("http", "https")
    finally:
        server.socket.close()


def test_an_expired_certificate_stops_the_sink(
    client: SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names sink and store, and says what to do; the run does not wait."""
    file = expired(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with FakeServer() as server, encrypted(server, file) as url:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(SinkStopped, match=r"^s: the certificate of 127.0.0.1 has expired: renew it there, and"):
            StoreBench(OpenSearchSettings, tmp_path, url=url, index="rows").run(client)
        thread.join(10)


def test_a_key_of_one_text_is_its_id(server: FakeServer, write: Write) -> None:
    """Another key is a JSON array, and no two keys have one id."""
    write("customer/5", "", "[1]", '["x"]', "é")
    assert server.bulks == [["customer/5", '[""]', '["[1]"]', '["[\\"x\\"]"]', "é"]]
    assert opensearch._id_of((5,)) == "[5]"
    assert opensearch._id_of(("a", 1)) == '["a",1]'


def test_a_delete_of_a_row_that_is_not_there_is_a_success(server: FakeServer, tmp_path: Path) -> None:
    """The server answers 404 without an error."""
    server.answers = [lambda _: (200, b'{"items": [{"delete": {"status": 404}}]}')]
    with closing(StoreBench(OpenSearchSettings, tmp_path, url=server.url, index="rows").store()) as store:
        store.open(SINK, 1)
        store.write(RowChanges((RowChange(1, ("a",), None),)), None, StorePosition(2))
    assert server.sequence == 2
