"""Defines every request of the public API as a value, for both clients.

Routes and parameters are those of docs/http_api.md. Keys travel percent-encoded byte by byte in the path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from raftlog.cluster.api import explain, members as member_types
from raftlog.cluster.api.encoding import as_text, to_b64
from raftlog.cluster.api.headers import BACKUP, H_KEY, H_SESSION, H_SETTLED, H_TIME, JSON, MSGPACK, NDJSON, RAW
from raftlog.cluster.api.kv import BatchAnswer, BatchItem, CompactionAnswer, CompareIn, OperationIn, TxnIn, Written
from raftlog.cluster.api.records import Appended, Trimmed
from raftlog.cluster.api.sessions import Receipt, SessionAnswer, SessionDone, SessionIn
from raftlog.cluster.api.status import DigestAnswer, Status
from raftlog.cluster.client import answers
from raftlog.cluster.client.arguments import checked
from raftlog.cluster.client.flow import ApiRequest
from raftlog.cluster.client.http1 import ResponseHead
from raftlog.cluster.client.new_records import NewRecord, check_record, encode, pack

Consistency = Literal["linearizable", "stale"]
_OCTETS: Final = "application/octet-stream"


class KeyWrite(NamedTuple):
    """One write of a batch; no value: a delete."""

    sequence: int
    key: bytes
    value: bytes | None
    if_revision: int | None


# -- log ------------------------------------------------------------------------------------------------------


def append(records: Sequence[NewRecord]) -> ApiRequest[Appended]:
    """Appends the records as one request: all of them consecutively, or none."""
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
    return ApiRequest("POST", "/v1/log", _appended, body, headers, writes=True)


_appended = answers.plain(Appended)


@checked
def log_page(
    from_index: int,
    *,
    to: int | None = None,
    limit: int | None = None,
    wait_ms: int = 0,
    internal: bool = False,
    consistency: Consistency = "linearizable",
    min_index: int = 0,
) -> ApiRequest[answers.LogPage]:
    """Reads the records [from_index, to), at most `limit` scanned; waits up to `wait_ms` for a record."""
    query = _log_query(from_index, to, None, internal, consistency, min_index)
    query |= {"limit": limit, "wait": wait_ms or None}
    return ApiRequest("GET", _target("/v1/log", query), answers.log_page, hold_ms=wait_ms)


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
    query = _log_query(from_index, to, from_time_ms, internal, "linearizable", min_index)
    query |= {"format": "ndjson", "follow": True if follow else None}
    return ApiRequest("GET", _target("/v1/log", query), answers.nothing, accept=NDJSON)


@checked
def log_raw(from_index: int, *, to: int | None = None, min_index: int = 0) -> ApiRequest[None]:
    """Opens a stream of raw chunks (`raftlog.raft.codec`): entries and effects as they are on the node's disk."""
    query = _log_query(from_index, to, None, False, "linearizable", min_index) | {"format": "raw"}
    return ApiRequest("GET", _target("/v1/log", query), answers.nothing, accept=RAW)


def _log_query(
    from_index: int,
    to: int | None,
    from_time_ms: int | None,
    internal: bool,
    consistency: Consistency,
    min_index: int,
) -> dict[str, Any]:
    return {
        "from": from_index if from_time_ms is None else None,
        "to": to,
        "from_time": from_time_ms,
        "internal": True if internal else None,
        **_reading(consistency, min_index),
    }


# -- key-value store ------------------------------------------------------------------------------------------


@checked
def get(
    key: bytes, *, at: int | None = None, consistency: Consistency = "linearizable", min_index: int = 0
) -> ApiRequest[answers.Item]:
    """Reads one key, as it is or as it was at a revision."""
    return ApiRequest("GET", _target(_kv(key), {"at": at, **_reading(consistency, min_index)}), answers.got)


@checked
def put(key: bytes, value: bytes, *, if_revision: int | None = None) -> ApiRequest[Written]:
    """Writes one key; with `if_revision` only if its mod revision is that (0: only if there is none)."""
    return ApiRequest(
        "PUT",
        _target(_kv(key), {"if_revision": if_revision}),
        _written,
        value,
        (("Content-Type", _OCTETS),),
        writes=True,
    )


@checked
def delete(key: bytes, *, if_revision: int | None = None) -> ApiRequest[Written]:
    """Deletes one key."""
    return ApiRequest("DELETE", _target(_kv(key), {"if_revision": if_revision}), _written, writes=True)


@checked
def delete_range(start: bytes, end: bytes | None) -> ApiRequest[Written]:
    """Deletes the keys [start, end); None: to the last key. Raises ValueError for an empty end: it may be a mistake."""
    if end is not None and not end:
        raise ValueError("end is empty: give the key to stop before, or None to delete all keys up to the last one")
    return ApiRequest("DELETE", _target("/v1/kv", _span(start, end)), _written, writes=True)


_written = answers.plain(Written)


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


_batch_answer = answers.plain(BatchAnswer)


@checked
def range_page(
    start: bytes,
    end: bytes | None,
    *,
    limit: int | None = None,
    continuation: str | None = None,
    at: int | None = None,
    keys_only: bool = False,
    consistency: Consistency = "linearizable",
    min_index: int = 0,
    prefix: bytes | None = None,
) -> ApiRequest[answers.Page]:
    """Reads one page of the keys [start, end); None: to the last key. `prefix` takes the place of both.

    Raises ValueError for a prefix beside them."""
    if prefix is not None:
        if start or end is not None:
            raise ValueError("prefix names all keys that begin so: give either it, or start and end")
        start, end = prefix, prefix_end(prefix)
    query = {
        **_span(start, end),
        "limit": limit,
        "continuation": continuation,
        "at": at,
        "keys_only": True if keys_only else None,
        **_reading(consistency, min_index),
    }
    return ApiRequest("GET", _target("/v1/kv", query), answers.page)


@checked
def prefix_end(prefix: bytes) -> bytes | None:
    """The first key after all keys with that prefix; None if there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def txn(transaction: TxnIn) -> ApiRequest[answers.TxnResult]:
    """Compares, then carries out one of two branches, atomically."""
    body = msgspec.json.encode(transaction)
    return ApiRequest("POST", "/v1/kv/txn", answers.txn_result, body, _JSON_BODY, writes=True)


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
    """Allows the history of keys below a revision to be deleted."""
    body = msgspec.json.encode({"revision": revision})
    return ApiRequest("POST", "/v1/kv/compact", _compacted, body, _JSON_BODY, writes=True)


_compacted = answers.plain(CompactionAnswer)


@checked
def trim(before: int) -> ApiRequest[Trimmed]:
    """Allows the records of the log below an index to be deleted. Repeating it is harmless, so it needs no session: a
    full disk, where a trim helps most, opens none."""
    body = msgspec.json.encode({"before": before})
    return ApiRequest("POST", "/v1/log/trim", _trimmed, body, _JSON_BODY, may_repeat=True)


_trimmed = answers.plain(Trimmed)


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


_session = answers.plain(SessionAnswer)


@checked
def keep_session(session: int) -> ApiRequest[SessionDone]:
    """Keeps a session alive for another time to live."""
    return ApiRequest("POST", f"/v1/sessions/{session}/keepalive", _session_done, b"")


@checked
def close_session(session: int) -> ApiRequest[SessionDone]:
    """Ends a session."""
    return ApiRequest("DELETE", f"/v1/sessions/{session}", _session_done, may_repeat=True)


_session_done = answers.plain(SessionDone)


@checked
def receipt(session: int, sequence: int) -> ApiRequest[Receipt]:
    """The result of a sequence."""
    return ApiRequest("GET", f"/v1/sessions/{session}/receipts/{sequence}", _receipt)


@checked
def void(session: int, sequence: int) -> ApiRequest[Receipt]:
    """Makes a "not seen" final; of an applied sequence the answer is its receipt."""
    return ApiRequest("POST", f"/v1/sessions/{session}/receipts/{sequence}/void", _receipt, b"", may_repeat=True)


_receipt = answers.plain(Receipt)


# -- verify and operate ---------------------------------------------------------------------------------------


@checked
def digest(index: int | None = None, *, log_from: int | None = None) -> ApiRequest[DigestAnswer]:
    """The state digest at an index (None: now); with `log_from` also that of the log rows [log_from, index]."""
    query = {"index": index, "log_from": log_from}
    return ApiRequest("GET", _target("/v1/digest", query), _digest)


_digest = answers.plain(DigestAnswer)


def status() -> ApiRequest[Status]:
    """The status of the node that answers."""
    return ApiRequest("GET", "/v1/status", _status)


_status = answers.plain(Status)


@checked
def backup(*, consistency: Consistency = "linearizable", min_index: int = 0) -> ApiRequest[None]:
    """Opens a stream of the bytes of a backup (`raftlog.cluster.records.backup_format`)."""
    return ApiRequest("GET", _target("/v1/backup", _reading(consistency, min_index)), answers.nothing, accept=BACKUP)


def explain_leaderless() -> ApiRequest[explain.Leaderless]:
    """Why there is no leader or no progress, as the answering node knows it."""
    return ApiRequest("GET", "/v1/explain/leaderless", _leaderless)


_leaderless = answers.plain(explain.Leaderless)


@checked
def explain_index(index: int) -> ApiRequest[explain.EntryView]:
    """What happened to a record, as the answering node knows it."""
    return ApiRequest("GET", f"/v1/explain/{index}", _entry)


_entry = answers.plain(explain.EntryView)


def members() -> ApiRequest[member_types.Members]:
    """The members of the cluster."""
    return ApiRequest("GET", "/v1/members", _members)


_members = answers.plain(member_types.Members)


_changed = answers.plain(member_types.ChangeAnswer)


def change_members(change: member_types.ChangeIn) -> ApiRequest[member_types.ChangeAnswer]:
    """Begins a change of the members."""
    return ApiRequest("POST", "/v1/members", _changed, msgspec.json.encode(change), _JSON_BODY, is_plain=True)


@checked
def transfer_leadership(to: int | None) -> ApiRequest[member_types.TransferAnswer]:
    """Hands leadership to that node (None: the voter with the longest log)."""
    body = msgspec.json.encode(member_types.TransferIn(to))
    return ApiRequest("POST", "/v1/leader/transfer", _transferred, body, _JSON_BODY, is_plain=True)


_transferred = answers.plain(member_types.TransferAnswer)


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


def _reading(consistency: Consistency, min_index: int) -> dict[str, Any]:
    return {"consistency": None if consistency == "linearizable" else consistency, "min_index": min_index or None}


def _span(start: bytes, end: bytes | None) -> dict[str, Any]:
    return _both("start", start) | _both("end", end)


def _both(name: str, data: bytes | None) -> dict[str, Any]:
    """A field or parameter of bytes: as text if they are UTF-8, else as its base64 twin."""
    if data is None:
        return {}
    text = as_text(data)
    return {name: text} if text is not None else {f"{name}_b64": to_b64(data)}
