"""Defines every request of the public API as a value, for both clients.

Routes and parameters are those of docs/http_api.md. Keys travel percent-encoded byte by byte in the path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from raftlog.cluster.api import explain, members as member_types
from raftlog.cluster.api.encoding import as_text, to_b64
from raftlog.cluster.api.headers import BACKUP, H_KEY, H_SESSION, H_SETTLED, H_TIME, JSON, MSGPACK, NDJSON, RAW
from raftlog.cluster.api.kv import BatchAnswer, BatchItem, CompactionAnswer, CompareIn, OperationIn, TxnIn, Written
from raftlog.cluster.api.observe import HistoryAnswer
from raftlog.cluster.api.records import Appended, TrimAnswer
from raftlog.cluster.api.sessions import Receipt, SessionAnswer, SessionDone, SessionIn
from raftlog.cluster.api.status import DigestAnswer, SnapshotAnswer, Status
from raftlog.cluster.client import answers
from raftlog.cluster.client.arguments import checked
from raftlog.cluster.client.flow import ApiRequest
from raftlog.cluster.client.http1 import ResponseHead
from raftlog.cluster.client.new_records import NewRecord, check_record, encode, pack

T = TypeVar("T")
Consistency = Literal["linearizable", "stale"]
_OCTETS: Final = "application/octet-stream"

# How answers are read.
_appended = answers.plain(Appended)
_written = answers.plain(Written)
_batch_answer = answers.plain(BatchAnswer)
_compacted = answers.plain(CompactionAnswer)
_trimmed = answers.plain(TrimAnswer)
_session = answers.plain(SessionAnswer)
_session_done = answers.plain(SessionDone)
_receipt = answers.plain(Receipt)
_digest = answers.plain(DigestAnswer)
_status = answers.plain(Status)
_history = answers.plain(HistoryAnswer)
_leaderless = answers.plain(explain.Leaderless)
_entry = answers.plain(explain.EntryView)
_cluster = answers.plain(member_types.ClusterView)
_members = answers.plain(member_types.Members)
_changed = answers.plain(member_types.ChangeAnswer)
_transferred = answers.plain(member_types.TransferAnswer)
_saved = answers.plain(SnapshotAnswer)


class KeyWrite(NamedTuple):
    """One write of a batch; no value: a delete."""

    sequence: int
    key: bytes
    value: bytes | None
    if_revision: int | None


# -- log ------------------------------------------------------------------------------------------------------


@checked
def append(records: Sequence[NewRecord], *, deadline_s: float | None = None) -> ApiRequest[Appended]:
    """Appends records as one request: all of them consecutively, or none."""
    if not records:
        raise ValueError("nothing to append: give at least one record")
    headers: tuple[tuple[str, str], ...]
    if len(records) == 1:
        check_record(records[0])
    if len(records) == 1 and not records[0].headers and records[0].value is not None:
        value, key, _, time_ms = records[0]
        headers = (("Content-Type", _OCTETS),)
        if key is not None:
            headers += ((H_KEY, quote(key, safe="")),)
        if time_ms is not None:
            headers += ((H_TIME, str(time_ms)),)
        body = value
    else:
        headers = (("Content-Type", MSGPACK),)
        body = pack(records)
    return ApiRequest("POST", "/v1/log", _appended, body, headers, writes=True, deadline_s=deadline_s)


@checked
def log_page(
    from_index: int,
    *,
    to: int | None = None,
    limit: int | None = None,
    wait_ms: int = 0,
    internal: bool = False,
    consistency: Consistency = "linearizable",
    min_index: int | None = None,
) -> ApiRequest[answers.LogPage]:
    """One page of the log from an index on, up to but not including `to`: at most `limit` records, with internal ones.
    `wait_ms`: longest wait for a record."""
    query = {"from": from_index, "to": to, "internal": internal or None, "limit": limit, "wait": wait_ms or None}
    return _read("/v1/log", query, answers.log_page, consistency, min_index, hold_ms=wait_ms)


@checked
def log_stream(
    from_index: int,
    *,
    to: int | None = None,
    from_time_ms: int | None = None,
    follow: bool = False,
    internal: bool = False,
    min_index: int = 0,
) -> ApiRequest[None]:
    """Opens a stream of NDJSON lines, to the present end or (`follow`) for ever."""
    query = {
        "from": from_index if from_time_ms is None else None,
        "to": to,
        "from_time": from_time_ms,
        "internal": internal or None,
        "min_index": min_index or None,
        "format": "ndjson",
        "follow": follow or None,
    }
    return ApiRequest("GET", _target("/v1/log", query), answers.nothing, accept=NDJSON)


@checked
def log_raw(from_index: int, *, to: int | None = None, min_index: int = 0) -> ApiRequest[None]:
    """Opens a stream of raw chunks (`raftlog.raft.codec`): entries and effects as they are on the node's disk."""
    query = {"from": from_index, "to": to, "min_index": min_index or None, "format": "raw"}
    return ApiRequest("GET", _target("/v1/log", query), answers.nothing, accept=RAW)


# -- key-value store ------------------------------------------------------------------------------------------


@checked
def get(
    key: bytes, *, at: int | None = None, consistency: Consistency = "linearizable", min_index: int | None = None
) -> ApiRequest[answers.Item | None]:
    """A key's value, now or at a revision; None if it is not there."""
    return _read(_kv(key), {"at": at}, answers.got, consistency, min_index, may_be_absent=True)


@checked
def put(
    key: bytes, value: bytes, *, if_revision: int | None = None, deadline_s: float | None = None
) -> ApiRequest[Written]:
    """Writes a key; with `if_revision` only if its mod revision is that (0: only if it is not there)."""
    return ApiRequest(
        "PUT",
        _target(_kv(key), {"if_revision": if_revision}),
        _written,
        value,
        (("Content-Type", _OCTETS),),
        writes=True,
        deadline_s=deadline_s,
    )


@checked
def delete(key: bytes, *, if_revision: int | None = None, deadline_s: float | None = None) -> ApiRequest[Written]:
    """Deletes a key; `deleted` is 0 if it was not there."""
    target = _target(_kv(key), {"if_revision": if_revision})
    return ApiRequest("DELETE", target, _written, writes=True, deadline_s=deadline_s)


@checked
def delete_range(start: bytes, end: bytes | None, *, deadline_s: float | None = None) -> ApiRequest[Written]:
    """Deletes the keys [start, end); None: to the last key. Raises ValueError for an empty end: it may be a mistake."""
    if end is not None and not end:
        raise ValueError("end is empty: give the key to stop before, or None to delete all keys up to the last one")
    return ApiRequest("DELETE", _target("/v1/kv", _span(start, end)), _written, writes=True, deadline_s=deadline_s)


def write_batch(session: int, settled: int, writes: Sequence[KeyWrite]) -> ApiRequest[list[BatchItem]]:
    """Writes several keys, each under its own sequence of the session. One result for each, in their order."""
    count = len(writes)

    def decode(head: ResponseHead, body: bytes) -> list[BatchItem]:
        results = _batch_answer(head, body).results
        if len(results) != count or any((each.written is None) == (each.problem is None) for each in results):
            raise ValueError(f"{len(results)} results for {count} writes, or one that says nothing")
        return results

    headers = (("Content-Type", MSGPACK), (H_SESSION, str(session)), (H_SETTLED, str(settled)))
    return ApiRequest("POST", "/v1/kv/batch", decode, encode(writes), headers)


@checked
def range_page(
    start: bytes = b"",
    end: bytes | None = None,
    *,
    limit: int | None = None,
    continuation: str | None = None,
    at: int | None = None,
    keys_only: bool = False,
    consistency: Consistency = "linearizable",
    min_index: int | None = None,
    prefix: bytes | None = None,
) -> ApiRequest[answers.Page]:
    """One page of the keys [start, end), None: to the last key; or of the keys that begin with `prefix`. Raises
    ValueError for a prefix beside them."""
    if prefix is not None:
        if start or end is not None:
            raise ValueError("prefix names all keys that begin so: give either it, or start and end")
        start, end = prefix, prefix_end(prefix)
    query = {
        **_span(start, end),
        "limit": limit,
        "continuation": continuation,
        "at": at,
        "keys_only": keys_only or None,
    }
    return _read("/v1/kv", query, answers.page, consistency, min_index)


@checked
def prefix_end(prefix: bytes) -> bytes | None:
    """The first key after all keys with that prefix; None if there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


@checked
def txn(transaction: TxnIn, *, deadline_s: float | None = None) -> ApiRequest[answers.TxnResult]:
    """Compares, then carries out `then` or `orelse`, atomically (`compare` and `step` make its parts)."""
    body = msgspec.json.encode(transaction)
    return ApiRequest("POST", "/v1/kv/txn", answers.txn_result, body, _JSON_BODY, writes=True, deadline_s=deadline_s)


@checked
def compare(
    key: bytes,
    target: Literal["value", "version", "create", "mod"],
    operator: Literal["=", "!=", "<", ">"],
    operand: bytes | int,
    *,
    end: bytes | None = None,
) -> CompareIn:
    """One comparison of a transaction, such as `compare(b"a", "mod", "=", 3)`."""
    fields = {**_both("key", key), **_both("end", end)}
    if isinstance(operand, int):
        return CompareIn(target, operator, **fields, number=operand)
    return CompareIn(target, operator, **fields, **_both("value", operand))


@checked
def step(
    operation: Literal["put", "delete", "delete_range", "get"],
    key: bytes,
    value: bytes | None = None,
    *,
    end: bytes | None = None,
    limit: int = 0,
) -> OperationIn:
    """One step of a branch of a transaction."""
    return OperationIn(operation, **_both("key", key), **_both("value", value), **_both("end", end), limit=limit)


@checked
def compact(revision: int) -> ApiRequest[CompactionAnswer]:
    """Allows the history of keys below a revision to be deleted. It needs no session, as `trim`."""
    body = msgspec.json.encode({"revision": revision})
    return ApiRequest("POST", "/v1/kv/compact", _compacted, body, _JSON_BODY, may_repeat=True)


@checked
def trim(before: int) -> ApiRequest[TrimAnswer]:
    """Allows the records of the log below an index to be deleted. Repeating it is harmless, so it needs no session: a
    full disk, where a trim helps most, opens none."""
    body = msgspec.json.encode({"before": before})
    return ApiRequest("POST", "/v1/log/trim", _trimmed, body, _JSON_BODY, may_repeat=True)


@checked
def watch(
    *,
    prefix: bytes | None = None,
    key: bytes | None = None,
    from_index: int | None = None,
    from_revision: int | None = None,
) -> ApiRequest[None]:
    """Opens a stream of change events, from an index, a revision or (neither) from now on."""
    query: dict[str, Any] = {"format": "ndjson", "from": from_index, "from_revision": from_revision}
    query |= _both("prefix", prefix) | _both("key", key)
    return ApiRequest("GET", _target("/v1/watch", query), answers.nothing, accept=NDJSON)


# -- sessions -------------------------------------------------------------------------------------------------


@checked
def open_session(ttl_ms: int) -> ApiRequest[SessionAnswer]:
    """A new session."""
    body = msgspec.json.encode(SessionIn(ttl_ms=ttl_ms))
    return ApiRequest("POST", "/v1/sessions", _session, body, _JSON_BODY)


@checked
def keep_session(session: int) -> ApiRequest[SessionDone]:
    """Keeps a session alive for another time to live."""
    return ApiRequest("POST", f"/v1/sessions/{session}/keepalive", _session_done, b"")


@checked
def close_session(session: int) -> ApiRequest[SessionDone]:
    """Ends a session."""
    return ApiRequest("DELETE", f"/v1/sessions/{session}", _session_done, may_repeat=True)


@checked
def receipt(session: int, sequence: int) -> ApiRequest[Receipt]:
    """The result of a sequence."""
    return ApiRequest("GET", f"/v1/sessions/{session}/receipts/{sequence}", _receipt)


@checked
def void(session: int, sequence: int) -> ApiRequest[Receipt]:
    """Makes a "not seen" final. Returns the result of the sequence."""
    return ApiRequest("POST", f"/v1/sessions/{session}/receipts/{sequence}/void", _receipt, b"", may_repeat=True)


# -- verify and operate ---------------------------------------------------------------------------------------


@checked
def digest(index: int | None = None, *, log_from: int | None = None) -> ApiRequest[DigestAnswer]:
    """The state digest at an index (None: now); with `log_from` also that of the log rows [log_from, index]."""
    query = {"index": index, "log_from": log_from}
    return ApiRequest("GET", _target("/v1/digest", query), _digest)


def status() -> ApiRequest[Status]:
    """The status of the node that answers."""
    return ApiRequest("GET", "/v1/status", _status)


@checked
def backup(*, consistency: Consistency = "linearizable") -> ApiRequest[None]:
    """Opens a stream of the bytes of a backup (`raftlog.cluster.records.backup_format`)."""
    query = {"consistency": "stale" if consistency == "stale" else None}
    return ApiRequest("GET", _target("/v1/backup", query), answers.nothing, accept=BACKUP)


def metrics() -> ApiRequest[bytes]:
    """The metrics of the node that answers, as Prometheus reads them."""
    return ApiRequest("GET", "/metrics", lambda _, body: body, accept="*/*")


@checked
def history(rows: int) -> ApiRequest[HistoryAnswer]:
    """Rates and times of the node that answers, in so many of its newest seconds."""
    return ApiRequest("GET", _target("/v1/history", {"rows": rows}), _history)


def explain_leaderless() -> ApiRequest[explain.Leaderless]:
    """Why there is no leader or no progress, as the answering node knows it."""
    return ApiRequest("GET", "/v1/explain/leaderless", _leaderless)


@checked
def explain_index(index: int) -> ApiRequest[explain.EntryView]:
    """What happened to a record, as the answering node knows it."""
    return ApiRequest("GET", f"/v1/explain/{index}", _entry)


def cluster() -> ApiRequest[member_types.ClusterView]:
    """What the node that answers knows of all members, and how old it is."""
    return ApiRequest("GET", "/v1/cluster", _cluster)


def members() -> ApiRequest[member_types.Members]:
    """The members of the cluster."""
    return ApiRequest("GET", "/v1/members", _members)


@checked
def change_members(change: member_types.ChangeIn) -> ApiRequest[member_types.ChangeAnswer]:
    """Begins a change of the members; the rest follows by itself. Not sent again once it may have begun."""
    return ApiRequest("POST", "/v1/members", _changed, msgspec.json.encode(change), _JSON_BODY, is_plain=True)


@checked
def transfer_leadership(to: int | None = None) -> ApiRequest[member_types.TransferAnswer]:
    """Hands leadership to that node (None: the voter with the longest log), and waits until it leads."""
    body = msgspec.json.encode(member_types.TransferIn(to))
    return ApiRequest("POST", "/v1/leader/transfer", _transferred, body, _JSON_BODY, is_plain=True)


def save_snapshot() -> ApiRequest[SnapshotAnswer]:
    """Has the node that gets the request save its state; a client with one URL and `bound` asks that node alone."""
    return ApiRequest("POST", "/v1/snapshot", _saved, is_plain=True)


# -- paths and parameters -------------------------------------------------------------------------------------

_JSON_BODY: Final = (("Content-Type", JSON),)


def _kv(key: bytes) -> str:
    if not key:
        raise ValueError("a key has at least one byte")
    # A proxy on the way would treat a path of dots as a folder.
    path = "".join("%2E" for _ in key) if key in (b".", b"..") else quote(key, safe="")
    return f"/v1/kv/{path}"


def _target(path: str, query: dict[str, Any]) -> str:
    given = {name: "true" if value is True else value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given, quote_via=quote)}" if given else path


def _read(
    path: str,
    query: dict[str, Any],
    decode: answers.Decode[T],
    consistency: Consistency,
    min_index: int | None,
    **more: Any,
) -> ApiRequest[T]:
    is_stale = consistency == "stale"
    query |= {"consistency": consistency if is_stale else None, "min_index": min_index or None}
    return ApiRequest("GET", _target(path, query), decode, may_be_late=is_stale and min_index is None, **more)


def _span(start: bytes, end: bytes | None) -> dict[str, Any]:
    return _both("start", start) | _both("end", end)


def _both(name: str, data: bytes | None) -> dict[str, Any]:
    """A field or parameter of bytes: as text if they are UTF-8, else as its base64 twin."""
    if data is None:
        return {}
    text = as_text(data)
    return {name: text} if text is not None else {f"{name}_b64": to_b64(data)}
