"""Tests the format of histories: accepted lines, their pairing, and errors that name the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.chaos.judge.history import BadHistory, Event, History, decode_lines, operations, read_history


def lines(*texts: str) -> list[bytes]:
    """Lines of a file, each given without process 1, type invoke, f read where it says nothing else."""
    return [text.encode() + b"\n" for text in texts]


def paired(*texts: str) -> list[tuple[str, str, object, object]]:
    """(f, outcome, value, output) of the operations of these lines."""
    return [(each.f, each.outcome, each.value, each.output) for each in operations(decode_lines(lines(*texts)))]


INVOKE = '{"process":1,"type":"invoke","f":"write","key":"x","value":1}'
OK = '{"process":1,"type":"ok","f":"write","key":"x","value":1}'
INFO = '{"process":1,"type":"info","f":"write","key":"x","value":0}'
READ = '{"process":1,"type":"invoke","f":"read","key":"x","value":null}'
TOLD = '{"process":1,"type":"ok","f":"read","key":"x","value":7}'


def test_operations_are_paired_by_process() -> None:
    """A completion belongs to what its process invoked last; order is that of the calls."""
    other = INVOKE.replace('"process":1', '"process":"b"').replace('"value":1', '"value":2')
    found = operations(decode_lines(lines(INVOKE, other, OK)))
    assert [(each.process, each.called, each.returned, each.outcome) for each in found] == [
        (1, 1, 3, "ok"),
        ("b", 2, None, "info"),
    ]


def test_an_invocation_without_completion_is_unknown() -> None:
    """At the end of the file, and where the process goes on with something else."""
    assert paired(INVOKE) == [("write", "info", 1, None)]
    assert paired(INVOKE, READ, TOLD) == [("write", "info", 1, None), ("read", "ok", None, 7)]


def test_a_process_may_go_on_after_info() -> None:
    """Jepsen gives it a new number then, others do not; the value of an info says nothing."""
    assert paired(INVOKE, INFO, READ, TOLD) == [("write", "info", 1, None), ("read", "ok", None, 7)]


def test_remarks_are_left_out() -> None:
    """A nemesis is a process with info lines and no invocations."""
    assert paired('{"process":"nemesis","type":"info","f":"kill","value":3}', READ, TOLD) == [("read", "ok", None, 7)]


def test_optional_fields_are_kept() -> None:
    """Result, time, index, term and node of a completion belong to the operation; unknown fields are no error."""
    told = (
        '{"process":1,"type":"ok","f":"write","key":"x","value":1,"result":true,"time_ns":9,"index":4,"term":2,'
        '"node":3,"color":"red"}'
    )
    (found,) = operations(decode_lines(lines(INVOKE, told)))
    assert (found.result, found.returned_ns, found.index, found.term, found.node) == (True, 9, 4, 2, 3)


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ((INVOKE, "nonsense"), "line 2"),
        ((INVOKE, OK[:-5]), "line 2"),
        ((INVOKE, "[]"), "line 2"),
        ((INVOKE, "", OK), "line 2: empty"),
        (('{"type":"invoke","f":"read"}',), "line 1.*process"),
        (('{"process":1,"type":"begin","f":"read"}',), "line 1.*begin"),
        (('{"process":1.5,"type":"invoke","f":"read"}',), "line 1"),
        (('{"process":1,"type":"invoke"}',), "line 1.*`f`"),
        (('{"process":1,"type":"invoke","f":"read","index":"x"}',), "line 1.*index"),
        ((OK,), "line 1: process 1 completes 'write' without"),
        ((INVOKE, OK, OK), "line 3"),
        ((INVOKE, TOLD), "line 2.*invoked on line 1"),
        ((INVOKE, OK.replace('"x"', '"y"')), "line 2.*invoked on line 1"),
    ],
    ids=range(13),
)
def test_errors_name_the_line(texts: tuple[str, ...], why: str) -> None:
    """Broken JSON, missing and wrong fields, and completions of nothing or of something else."""
    with pytest.raises(BadHistory, match=why):
        operations(decode_lines(lines(*texts)))


def test_a_history_file_has_the_recorded_events(tmp_path: Path) -> None:
    """Writing and reading give the same events, remarks included."""
    history = History()
    history.invoke(1, "cas", "kéy", [1, "two"], time_ns=5)
    history.events.append(Event(process="nemesis", type="info", f="kill", value=[2]))
    history.complete(1, "ok", [1, "two"], result=False, time_ns=7, index=3, term=1, node="n1")
    history.invoke(2, "read", None)
    path = tmp_path / "history.jsonl"
    history.write(path)
    assert read_history(path).events == history.events
    assert path.read_bytes().count(b"\n") == 4


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file, a folder, a file that is no text, one with nothing in it: each says so."""
    (tmp_path / "empty").write_bytes(b"\n\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    for name, why in (("none", "No such file"), (".", "directory"), ("empty", "no event"), ("binary", "line 1")):
        with pytest.raises(BadHistory, match=why):
            read_history(tmp_path / name)


def test_the_last_line_needs_no_end(tmp_path: Path) -> None:
    """A file may end without a line end, or with empty lines."""
    for end in ("", "\n", "\n\n \n"):
        (tmp_path / "h").write_text(READ + "\n" + TOLD + end)
        assert len(read_history(tmp_path / "h").events) == 2


def test_an_operation_prints_its_fields() -> None:
    """In one line, with its lines in the file."""
    (found,) = operations(decode_lines(lines(READ, TOLD)))
    assert str(found) == 'process 1: read of "x" -> 7 (lines 1 and 2)'
