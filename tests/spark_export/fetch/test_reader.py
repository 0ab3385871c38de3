"""A range is read whole from whichever node has it intact, or refused with a reason; never short, never with a gap."""

import ssl
from collections.abc import Callable
from contextlib import ExitStack

import msgspec
import pyarrow as pa
import pytest

from raftlog.cluster.api.errors import Code
from raftlog.raft.codec.block import BlockRecord
from raftlog.raft.types import EntryKind
from raftlog.spark_export.columns.hashes import row_hashes
from raftlog.spark_export.columns.schema import ARROW
from raftlog.spark_export.errors import DataLossError, ExportError, UnreachableError, UsageError
from raftlog.spark_export.export.cluster_digest import check_end, cluster_digests
from raftlog.spark_export.fetch import door
from raftlog.spark_export.fetch.ranges import Range
from raftlog.spark_export.fetch.reader import read
from raftlog.statemachine.access.grants import BUILT_IN
from raftlog.statemachine.access.permissions import Permissions
from raftlog.statemachine.commands import Operation
from tests.spark_export import logs
from tests.spark_export.server import LOG_ID, Served, serving
from tests.support import free_port

LOG = logs.mixed(1, 40, records_max=4)
ROWS = list(logs.naive_rows(LOG.entries, LOG.effects))
END = LOG.last.index + 1


def rows_of(
    *served: Served,
    start: int = 1,
    stop: int = END,
    log_id: str = LOG_ID,
    patience_s: float = 0.2,
    with_internal: bool = True,
) -> list[logs.Row]:
    """The rows of [start, stop) read from these nodes."""
    with ExitStack() as stack:
        urls = tuple(stack.enter_context(serving(node)) for node in served)
        wanted = Range(urls, log_id, start, stop, patience_s=patience_s)
        return [row for batch in read(wanted, with_internal=with_internal) for row in batch.to_pylist()]


@pytest.mark.parametrize(("start", "stop"), [(1, END), (1, 2), (5, 6), (7, 30), (END - 1, END), (2, END - 1), (9, 9)])
def test_a_range_is_read_exactly(start: int, stop: int) -> None:
    """Ranges may begin and end inside entries; exactly their rows arrive, however many chunks and requests it takes."""
    expected = [row for row in ROWS if start <= row["index"] < stop]
    for per_chunk, per_answer in ((1, 1), (3, 2), (1000, 1000)):
        node = Served(LOG, entries_per_chunk=per_chunk, chunks_per_answer=per_answer)
        assert rows_of(node, start=start, stop=stop) == expected


@pytest.mark.parametrize("with_internal", [True, False])
def test_brief_effects_among_whole_ones_read_the_same(*, with_internal: bool) -> None:
    """Nodes are asked for effects in brief, and give whole ones where they must: chunks of both kinds in one answer, in
    any order, are the same rows."""
    log = logs.mixed(1, 20, records_max=2)
    for number in range(60):
        log.plain([BlockRecord(Operation.APPEND, b"k", b"v%d" % number)] * (1 if number % 20 < 15 else 2))
    log.add(EntryKind.NOOP, b"")
    rows = [row for row in logs.naive_rows(log.entries, log.effects) if with_internal or logs.is_user(row)]
    for per_chunk in (3, 5, 7):
        node = Served(log, entries_per_chunk=per_chunk)
        assert rows_of(node, stop=log.last.index + 1, with_internal=with_internal) == rows
        assert node.brief_chunks


@pytest.mark.parametrize("seed", range(3))
def test_a_reader_that_may_not_see_permissions_reads_all_the_rest(seed: int) -> None:
    """It gets each row, without the values of configurations and of changes of permissions, whole chunks and brief ones
    alike, also where one node shows them and another does not. Both hash to the same."""
    log = logs.mixed(seed, 40, records_max=3)
    for number in range(20):
        log.plain([BlockRecord(Operation.APPEND, b"k", b"v%d" % number)], admission=b"user")
    rows = list(logs.naive_rows(log.entries, log.effects))
    due = logs.without_hidden(rows)
    assert due != rows
    end = log.last.index + 1
    reader = Permissions(BUILT_IN["reader"])
    for per_chunk in (1, 5, 1000):
        node = Served(log, entries_per_chunk=per_chunk, sees=reader, chunks_per_answer=3)
        assert rows_of(node, stop=end) == due
        assert rows_of(node, start=7, stop=end - 2) == due[6:-2]
    hashes = [row_hashes(pa.RecordBatch.from_pylist(each, schema=ARROW)).tolist() for each in (rows, due)]
    assert hashes[0] == hashes[1]
    shows = Served(log, entries_per_chunk=2, chunks_per_answer=2)
    hides = Served(log, entries_per_chunk=2, chunks_per_answer=2, sees=reader, faults=[lambda body: Code.BUSY] * 3)
    told = rows_of(hides, shows, stop=end, patience_s=5)
    assert all(row in pair for row, *pair in zip(told, rows, due, strict=True))


def test_a_node_that_knows_no_brief_effects_is_asked_for_whole_ones() -> None:
    """A reader may be newer than the nodes: what they refuse is asked for without it. Refused again, it is an error."""
    older = Served(LOG, faults=[lambda body: Code.BAD_REQUEST])
    assert rows_of(older) == ROWS
    assert ["effects=brief" in path for path in older.asked] == [True, False]
    with pytest.raises(ExportError, match="bad_request"):
        rows_of(Served(LOG, faults=[lambda body: Code.BAD_REQUEST] * 2))


def test_every_cut_of_the_log_reads_the_same() -> None:
    """Split anywhere into two ranges, the log is the same rows."""
    node = Served(LOG)
    with serving(node) as url:
        for cut in range(1, END, 7):
            parts = [Range((url,), LOG_ID, 1, cut), Range((url,), LOG_ID, cut, END)]
            assert [row for part in parts for batch in read(part) for row in batch.to_pylist()] == ROWS


def flipped(body: bytes) -> bytes:
    """One bit in the middle."""
    return body[: len(body) // 2] + bytes([body[len(body) // 2] ^ 4]) + body[len(body) // 2 + 1 :]


FAULTS: list[Callable[[bytes], bytes | Code]] = [
    flipped,
    lambda body: body[: len(body) // 3],
    lambda body: b"",
    lambda body: b"no chunk at all, but long enough for the head of one: " + body,
    lambda body: logs.progress_chunk(1, committed=0),
    lambda body: Code.NO_LEADER,
    lambda body: Code.FUTURE_INDEX,
    lambda body: Code.FENCED,
    lambda body: LOG.chunk(5, 9),
]


@pytest.mark.parametrize("fault", FAULTS, ids=range(len(FAULTS)))
def test_another_node_is_asked_after_a_fault(fault: Callable[[bytes], bytes | Code]) -> None:
    """Damaged bytes, a cut answer, one of another place, a node that lags or cannot: the next node gives the rest, and
    no row arrives twice."""
    bad, good = Served(LOG, faults=[fault] * 99), Served(LOG)
    assert rows_of(bad, good) == ROWS
    assert bad.asked
    assert good.asked


def test_one_node_alone_is_asked_again() -> None:
    """Where there is only one node, passing faults are waited out."""
    assert rows_of(Served(LOG, chunks_per_answer=4, faults=FAULTS[:5]), patience_s=60) == ROWS


def test_a_dead_node_is_passed_over() -> None:
    """A refused connection is a reason to ask the next node."""
    with serving(Served(LOG)) as url:
        wanted = Range((f"http://127.0.0.1:{free_port()}", url), LOG_ID, 1, END)
        assert sum(len(batch) for batch in read(wanted)) == len(ROWS)


def test_no_node_at_all_names_each_with_its_reason() -> None:
    """When the patience ends, the message names every endpoint with what it said, and what to look at. Where a program
    accepts connections it proposes no other cluster, whether or not TLS comes about. Guard: `is_reached`."""
    port = free_port()
    with pytest.raises(UnreachableError, match=rf"127.0.0.1:{port}: .*refused.*the cluster's URLs .`raftlog up`"):
        list(read(Range((f"http://127.0.0.1:{port}",), LOG_ID, 1, 5, patience_s=0.05)))
    with serving(Served(LOG)) as url, pytest.MonkeyPatch.context() as patched:
        patched.setattr(door, "_tls_context", ssl.create_default_context)
        with pytest.raises(UnreachableError, match="A program accepts connections there: `raftlog status`"):
            list(read(Range((url.replace("http:", "https:"),), LOG_ID, 1, 5, patience_s=0.05)))
    with pytest.raises(UnreachableError, match=r"CRC.*A program accepts connections there"):
        rows_of(Served(LOG, faults=[flipped] * 999))


def test_a_trimmed_range_is_an_error() -> None:
    """Below the oldest index nothing is skipped: the error names the oldest index and the remedies."""
    with pytest.raises(DataLossError, match=r"index 3 is no longer kept: the log begins at index 9 now.*earliest"):
        rows_of(Served(LOG, oldest=9), start=3)


def test_a_node_whose_log_begins_late_is_passed_over() -> None:
    """A node that was built from a snapshot has less history than the others: it is read where somebody has it."""
    late = Served(LOG, oldest=9)
    assert rows_of(late, Served(LOG), start=3) == [row for row in ROWS if row["index"] >= 3]
    with pytest.raises(DataLossError, match="index 3 is no longer kept: the log begins at index 9 now"):
        rows_of(late, Served(LOG, oldest=20), start=3)


def test_another_log_is_an_error() -> None:
    """A cluster with another log id behind the same endpoint is never read as if it were the first."""
    with pytest.raises(DataLossError, match=r"serves log ffff.*expected 0123"):
        rows_of(Served(LOG, log_id="f" * 32))


def test_a_node_with_another_history_is_left() -> None:
    """The chain of header CRCs is followed from answer to answer: entries of another history are refused, although
    their index and term fit."""
    other = logs.mixed(2, 40, records_max=4)
    mixture = logs.Log(LOG.entries[:4] + other.entries[4:], LOG.effects[:4] + other.effects[4:], other.last)
    with pytest.raises(UnreachableError, match="index"):
        rows_of(Served(mixture, entries_per_chunk=2, chunks_per_answer=2), stop=30)


def test_another_program_at_the_endpoint_is_an_error() -> None:
    """An HTTP server that is no raftlog node is named as such."""
    with serving(Served(LOG)) as url, pytest.raises(ExportError, match="is it a raftlog node"):
        with door.answering(url, "/elsewhere", {}):
            pass


@pytest.mark.parametrize("text", ["", " , ", "http://h", "h:0", "ftp://h:1", "h:x"])
def test_endpoints_that_are_none_are_usage_errors(text: str) -> None:
    """An invalid URL of a node is refused before any connection."""
    with pytest.raises(UsageError, match="endpoints"):
        door.parse_endpoints(text)


def test_bounds_and_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a plan asks: where the log begins and ends, whether an entry ends there, and the digests, whose parts add up
    to the whole."""
    with serving(Served(LOG, oldest=4)) as url:
        page = door.bounds(door.NodeRotation((url,)))
        assert (page.log, page.oldest, page.index) == (LOG_ID, 4, LOG.last.index)
        whole = cluster_digests((url,), LOG_ID, 1, LOG.last.index)
        assert whole.log.count == LOG.last.index
        monkeypatch.setattr("raftlog.spark_export.export.cluster_digest.PART_RECORDS", 13)
        parted = cluster_digests((url,), LOG_ID, 1, LOG.last.index)
        assert msgspec.structs.replace(parted, parts=whole.parts) == whole
        assert [(part.first, part.last) for part in parted.parts[:2]] == [(1, 13), (14, 26)]
        assert sum(part.log.count for part in parted.parts) == LOG.last.index
        check_end(door.NodeRotation((url,)), LOG.last.index)
        entry = next(entry for entry in LOG.entries if entry.count > 1)
        with pytest.raises(UsageError, match=f"end the export at {entry.before} or {entry.index}"):
            check_end(door.NodeRotation((url,)), entry.index - 1)
        with pytest.raises(DataLossError, match="another cluster"):
            cluster_digests((url,), "f" * 32, 1, 9)
        other = Served(LOG)
        with serving(other) as second:
            assert cluster_digests((url, second), LOG_ID, 1, LOG.last.index) == parted
        assert len(other.asked) == len(parted.parts) // 2, "each node hashes its share"
    with serving(Served(LOG, digest=Code.COMPACTED)) as url, pytest.raises(DataLossError):
        cluster_digests((url,), LOG_ID, 1, LOG.last.index)
