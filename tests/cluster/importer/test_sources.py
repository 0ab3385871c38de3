"""A copy of any source is exactly once: through kills, lost connections and expired sessions."""

import sqlite3
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftlog import sources
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.importer.sources import CopyStep, Events, FileSource, NewRecord, Part, SourceError, copy
from tests.cluster.fake_node import FakeNode
from tests.cluster.importer.jobs import Killed, killer, values
from tests.support import http_served

STEPS = (CopyStep.OPENED, CopyStep.BEGUN, CopyStep.NOTED, CopyStep.ANSWERED)


class Numbers:
    """Numbers up to an end, in parts of `size`. A second reading gives other values, as a live stream does."""

    name = "numbers"
    client: SyncClient

    def __init__(self, end: int, size: int = 1) -> None:
        self.end, self.size, self.given = end, size, 0

    def read(self, position: Any | None) -> Iterator[Part]:
        """From the position on."""
        for start in range(position or 0, self.end, self.size):
            numbers = range(start, min(start + self.size, self.end))
            yield Part([NewRecord(b"%d" % number, b"k", (("h", b"v"),), 5) for number in numbers], numbers.stop)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("time", [1, 3])
@pytest.mark.parametrize("has_expired", [False, True])
def test_killed_at_any_step_it_goes_on_exactly_once(
    tmp_path: Path, step: CopyStep, time: int, has_expired: bool, node: FakeNode, client: SyncClient
) -> None:
    """Also if the session has expired meanwhile: the log shows whether the kept batch is in it."""
    try:
        list(copy(Numbers(23, 2), client, tmp_path / "s", batch_records=5, at=killer(step, time)))
    except Killed:
        pass
    if has_expired:
        node.clock_ms += 8 * 24 * 3_600_000
    rest = list(copy(Numbers(23, 2), client, tmp_path / "s", batch_records=5))
    assert values(client) == [b"%d" % number for number in range(23)]
    assert all((each.records, each.position) == (23, 23) for each in rest[-1:])
    assert list(copy(Numbers(23, 2), client, tmp_path / "s")) == []
    assert [each.records for each in copy(Numbers(25), client, tmp_path / "s")][-1] == 25


class Outbox:
    """A table of SQLite, whose connection serves the thread that made it alone."""

    name = "outbox"

    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:")
        self.database.execute("CREATE TABLE outbox (id INTEGER PRIMARY KEY)")
        self.database.executemany("INSERT INTO outbox VALUES (?)", [(each,) for each in range(1, 8)])

    def read(self, position: Any | None) -> Iterator[Part]:
        """Three rows a part."""
        query = "SELECT id FROM outbox WHERE id > ? LIMIT 3"
        while rows := self.database.execute(query, (position or 0,)).fetchall():
            position = rows[-1][0]
            yield Part([NewRecord(b"%d" % each) for (each,) in rows], position)

    def confirm(self, position: Any) -> None:
        """Deletes the rows that are in the log."""
        self.database.execute("DELETE FROM outbox WHERE id <= ?", (position,))


def test_a_source_is_read_in_the_thread_of_its_caller(tmp_path: Path, client: SyncClient) -> None:
    """So an SQLite connection of the caller serves, for reading and for confirming; each part is one batch."""
    outbox = Outbox()
    assert [told.batch for told in copy(outbox, client, tmp_path / "s")] == [3, 3, 1]
    assert values(client) == [b"%d" % each for each in range(1, 8)]
    assert outbox.database.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
    assert list(copy(outbox, client, tmp_path / "s")) == []


def test_a_source_that_reads_ahead_is_read_in_a_thread_of_its_own(tmp_path: Path, client: SyncClient) -> None:
    """Because a source that waits for its sender must not delay records that it has read."""

    class Ahead(Numbers):
        reads_ahead = True
        thread = 0

        def read(self, position: Any | None) -> Iterator[Part]:
            self.thread = threading.get_ident()
            yield from super().read(position)

    assert Events("http://h/").reads_ahead
    source = Ahead(5)
    list(copy(source, client, tmp_path / "s"))
    assert len(values(client)) == 5
    assert source.thread not in (0, threading.get_ident())


@pytest.mark.parametrize("step", STEPS)
def test_a_position_is_confirmed_once_it_is_kept_and_its_records_are_in_the_log(
    tmp_path: Path, step: CopyStep, client: SyncClient
) -> None:
    """Through a kill, and for parts without records, which move the position alone."""

    class Confirmed(Numbers):
        confirmed: list[Any]

        def read(self, position: Any | None) -> Iterator[Part]:
            for part in super().read(position):
                yield part
                yield Part((), part.position)
            yield Part((), 1000)

        def confirm(self, position: Any) -> None:
            state = msgspec.json.decode((tmp_path / "s").read_bytes())
            assert position == (state["kept"] or state)["position"]
            assert len(values(self.client)) >= min(position, self.end)
            self.confirmed.append(position)

    source = Confirmed(12, 2)
    source.client, source.confirmed = client, []
    try:
        list(copy(source, client, tmp_path / "s", batch_records=4, at=killer(step, 2)))
    except Killed:
        pass
    list(copy(source, client, tmp_path / "s", batch_records=4))
    assert values(client) == [b"%d" % number for number in range(12)]
    assert source.confirmed == sorted(source.confirmed)
    assert source.confirmed[-1] == 1000
    source.confirmed.clear()
    list(copy(Numbers(1000), client, tmp_path / "s"))  # it begins after the position that has no records
    assert len(values(client)) == 12


def test_another_source_or_a_foreign_file_is_refused(tmp_path: Path, client: SyncClient) -> None:
    """The state belongs to one source and one log."""
    list(copy(Numbers(3), client, tmp_path / "s"))
    other = Numbers(3)
    other.name = "others"
    with pytest.raises(SourceError, match="of the source numbers"):
        list(copy(other, client, tmp_path / "s"))
    (tmp_path / "s").write_bytes(b"{}")
    with pytest.raises(SourceError, match=r"not the session file of an import or a copy .*--state"):
        list(copy(Numbers(3), client, tmp_path / "s"))


def test_an_error_of_the_source_comes_after_what_it_gave(tmp_path: Path, client: SyncClient) -> None:
    """The records before it are in the log."""

    class Broken(Numbers):
        def read(self, position: Any | None) -> Iterator[Part]:
            yield from super().read(position)
            raise SourceError("the wire is cut")

    with pytest.raises(SourceError, match="the wire is cut"):
        list(copy(Broken(7), client, tmp_path / "s"))
    assert len(values(client)) == 7


def test_files_are_a_source_with_their_own_times(tmp_path: Path, client: SyncClient) -> None:
    """Killed and continued; a changed beginning is refused."""
    path = tmp_path / "in.csv"
    path.write_text("at,n\n" + "".join(f"2016/01/{day:02d} 00:30:04.91,{day}\n" for day in range(1, 8)))
    source = FileSource(str(path), time="at", key="n")
    with pytest.raises(Killed):
        list(copy(source, client, tmp_path / "s", at=killer(CopyStep.ANSWERED, 1)))
    with path.open("a") as file:
        file.write("2016/01/08 00:30:04.91,8\n")
    list(copy(FileSource(str(path), time="at", key="n"), client, tmp_path / "s"))
    found = [record for record in client.log() if record.operation == "append"]
    assert [record.key for record in found] == [b"%d" % day for day in range(1, 9)]
    assert found[7].client_time_ms == 1_451_608_204_910 + 7 * 86_400_000
    path.write_text(path.read_text().replace("04.91,1", "04.92,1", 1))
    with pytest.raises(SourceError, match="has changed"):
        list(copy(FileSource(str(path), time="at", key="n"), client, tmp_path / "s"))


def test_a_position_in_a_file_after_an_empty_one_continues_that_file(tmp_path: Path) -> None:
    """The position counts the empty files, also before the first line and after the last: no line comes twice."""
    (tmp_path / "files").mkdir()
    for name, count in (("0", 0), ("a", 3), ("b", 0), ("c", 6_001), ("d", 0)):
        (tmp_path / "files" / f"{name}.ndjson").write_text("".join(f'{{"id": {n}}}\n' for n in range(count)))
    parts = [part for part in FileSource(str(tmp_path / "files")).read(None) if part.records]
    assert [len(part.records) for part in parts] == [3, 5_000, 1_001]
    for number, part in enumerate(parts, start=1):
        assert [*FileSource(str(tmp_path / "files")).read(part.position)] == parts[number:]


class Stream:
    """20 events, seven in each connection, after the last id; 204 at the end."""

    url = ""
    end, at_once, has_ids = 20, 7, True

    def __init__(self) -> None:
        self.asked: list[str | None] = []


@pytest.fixture
def stream() -> Iterator[Stream]:
    """A running server."""
    stream = Stream()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(stream, self)

        def log_message(self, *_: object) -> None:
            """Silent."""

    with http_served(Handler) as stream.url:
        yield stream


def answer(stream: Stream, handler: BaseHTTPRequestHandler) -> None:
    """The next events."""
    last = handler.headers.get("Last-Event-ID")
    stream.asked.append(last)
    if handler.path == "/json":
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.end_headers()
        return
    start = 0 if last is None else int(last) + 1
    if start >= stream.end:
        handler.send_response(204)
        handler.end_headers()
        return
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream; charset=utf-8")
    handler.end_headers()
    handler.wfile.write(b": a comment\nretry: 1\n\n")
    for number in range(start, min(start + stream.at_once, stream.end)):
        number_line = f"id: {number}\r\n" if stream.has_ids else ""
        handler.wfile.write(f"{number_line}event: tick\r\ndata: a{number}\r\ndata:b\r\n\r\n".encode())
    handler.wfile.write(b"id: 999\ndata: cut off in the middle")


@pytest.mark.parametrize("step", STEPS)
def test_events_are_exactly_once_through_lost_connections_and_kills(
    tmp_path: Path, stream: Stream, step: CopyStep, client: SyncClient
) -> None:
    """The server is asked for what follows the last id. An event that is cut off is not taken."""
    url = f"{stream.url}/s?x=1"
    with pytest.raises(Killed):
        list(copy(Events(url), client, tmp_path / "s", batch_records=3, at=killer(step, 1)))
    list(copy(sources.Events(url), client, tmp_path / "s", batch_records=3))
    assert values(client) == [b"a%d\nb" % number for number in range(20)]
    (first,) = [each for each in client.log() if each.value == b"a0\nb"]
    assert first.headers == (("event", b"tick"),)
    assert stream.asked[-1] == "19"


def test_events_without_ids_and_other_answers_are_refused(tmp_path: Path, stream: Stream, client: SyncClient) -> None:
    """A copy could not continue after them."""
    url = f"{stream.url}/"
    stream.has_ids = False
    with pytest.raises(SourceError, match="has no id"):
        list(copy(Events(url), client, tmp_path / "s"))
    assert values(client) == []
    with pytest.raises(SourceError, match="it must be 200 with text/event-stream"):
        list(copy(Events(f"{url}json"), client, tmp_path / "t"))


def test_a_closed_source_of_events_asks_for_no_further_events(stream: Stream) -> None:
    """It ends at the next lost connection, at once: not after the pause before a new one."""
    source = Events(f"{stream.url}/")
    stream.end = 1_000
    parts = source.read(None)
    assert next(parts).position == "0"
    source.close()
    assert [part.position for part in parts] == [str(number) for number in range(1, stream.at_once)]
    assert stream.asked == [None]
