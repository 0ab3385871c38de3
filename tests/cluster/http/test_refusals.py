"""Lists bad requests of all routes in one table: an error names the wrong part of each, and nothing changes."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgpack
import pytest

from raftlog.cluster.api.errors import Code
from tests.cluster.fake_node import LOG_ID, Served
from tests.cluster.http.http_probe import ask

JSON = {"Content-Type": "application/json"}
NDJSON = {"Content-Type": "application/x-ndjson"}
MSGPACK = {"Content-Type": "application/msgpack"}


class Bad(NamedTuple):
    """A request, and the code and a word of its problem."""

    method: str
    target: str
    says: str
    code: Code = Code.BAD_REQUEST
    body: bytes | None = None
    headers: dict[str, str] | tuple[()] = ()


def commit(code: Code = Code.BAD_REQUEST, says: str = "", **fields: Any) -> Bad:
    """A commit of the group `g`, whose generation is 3."""
    return Bad("PUT", "/v1/consumers/g", says, code, json.dumps(fields).encode())


def at(index: int, log: str = LOG_ID) -> dict[str, Any]:
    """A position on the wire."""
    return {"log": log, "next": {"0": index}}


ROUTES = (
    *(Bad("GET", target, "did you mean /v1/log?", Code.NOT_FOUND) for target in ("/v1/lgo", "/v1/log/", "/V1/log")),
    *(Bad("GET", target, "did you mean /v1/log?", Code.NOT_FOUND) for target in ("//v1/log", "/v2/log")),
    *(Bad("GET", f"/v1/sessions/1/receipts{more}", "no such route", Code.NOT_FOUND) for more in ("", "/2/3")),
    Bad("GET", "/etc/passwd", "no such route", Code.NOT_FOUND),
    Bad("GET", "/v1/kvx", "did you mean /v1/kv?", Code.NOT_FOUND),
    *(
        Bad("GET", "/v1/status", "Raftlog-Deadline-Ms", headers={"Raftlog-Deadline-Ms": deadline})
        for deadline in ("0", "-1", "1.5", "120001", "soon", "")
    ),
)
PARAMETERS = (
    *(
        Bad("GET", f"/v1/log?{query}", says)
        for query, says in (
            ("fromm=1", "did you mean from?"),
            ("from=", "from is ''"),
            ("from=-1", "from is '-1'"),
            ("from=0", "from 1 to"),
            ("from=1.5", "whole number"),
            ("from=0x10", "whole number"),
            ("from=%D9%A1", "whole number"),
            ("from=1e9", "whole number"),
            ("from=9007199254740992", "9007199254740991"),
            ("limit=10001", "10000"),
            ("wait=60001", "60000"),
            ("from=1&from=2", "twice"),
            ("encoding=hex", "auto, base64"),
            ("internal=1", "true or false"),
            ("from=%zz", "two hex digits"),
            ("format=%FF", "not UTF-8"),
            ("follow=true", "follow=true is for"),
            ("from=1&from_time=1", "both from and from_time"),
            ("operation=putt", "operation is 'putt': it must be one of append, put, "),
            ("user=a", "user needs internal=true"),
            ("session=x", "parameter session is 'x'"),
            ("session=", "parameter session is ''"),
            ("session=" + ",".join(map(str, range(1, 102))), "101 sessions: the limit is 100"),
            ("format=raw&prefix=a", "prefix is not for format=raw"),
            ("header=%FF", "header is not UTF-8"),
            ("format=ndjson&value_bytes=3", "value_bytes is for format=json, not for ndjson"),
        )
    ),
    *(Bad("GET", f"/v1/{route}?format=xml", "format is 'xml'", Code.NOT_ACCEPTABLE) for route in ("log", "watch")),
    Bad("GET", "/v1/watch?prefix=a&key=b", "both prefix and key"),
    Bad("GET", "/v1/watch?from=1&from_revision=1", "both from and from_revision"),
    Bad("GET", "/v1/watch?from=0", "from 1 to"),
    Bad("GET", "/v1/status?x=1", "none is taken here"),
    *(
        Bad("GET", f"/v1/log/density?{query}", says)
        for query, says in (
            ("buckets=0", "from 1 to 500"),
            ("buckets=501", "from 1 to 500"),
            ("from_time=5&to_time=5", "the log is read between them"),
            ("bucket=3", "buckets"),
        )
    ),
    *(
        Bad("GET", f"/v1/kv/k?{query}", says, code)
        for query, code, says in (
            ("versions=0", Code.BAD_REQUEST, "from 1 to 100"),
            ("versions=101", Code.BAD_REQUEST, "from 1 to 100"),
            ("versions=x", Code.BAD_REQUEST, "whole number"),
            ("versions=2&at=2&from=3", Code.BAD_REQUEST, "both from and at"),
            ("versions=2&at=99", Code.FUTURE_INDEX, "not reached yet"),
            ("value_bytes=2", Code.BAD_REQUEST, "versions=N"),
            ("from=3", Code.BAD_REQUEST, "versions=N"),
            ("versions=2&from=1", Code.BAD_REQUEST, "changed no such key"),
            ("versions=2&from=99", Code.FUTURE_INDEX, "applied the log up to"),
            ("version=2", Code.BAD_REQUEST, "versions"),
        )
    ),
)
PATHS = (
    *(
        Bad("PUT", f"/v1/kv{more}", says, code, b"v")
        for more, code, says in (
            ("/%zz", Code.BAD_REQUEST, "two hex digits"),
            ("/%f", Code.BAD_REQUEST, "two hex digits"),
            ("/", Code.BAD_REQUEST, "is empty"),
            ("", Code.BAD_REQUEST, "is empty"),
            ("?key_b64=!!", Code.BAD_REQUEST, "not base64"),
            ("?key_b64=", Code.BAD_REQUEST, "is empty"),
            ("/a?key_b64=YQ==", Code.BAD_REQUEST, "given twice"),
            ("/a?if_revision=-1", Code.BAD_REQUEST, "if_revision is '-1'"),
            ("/a?if_revision=" + "9" * 5000, Code.BAD_REQUEST, "if_revision is '999"),
            ("/a?if_revisoin=1", Code.BAD_REQUEST, "did you mean if_revision?"),
            ("/a?if_revision=1&if_revision=1", Code.BAD_REQUEST, "twice"),
            ("/" + "k" * 4097, Code.TOO_LARGE, "4097 bytes"),
        )
    ),
    *(Bad("DELETE", f"/v1/sessions/{number}", "the session in the path") for number in ("x", "0", "-1", "9" * 20)),
    Bad("DELETE", "/v1/sessions/%31%zz", "two hex digits"),
    *(
        Bad("POST", f"/v1/consumers/{name}/claim", says, code)
        for name, code, says in (
            ("", Code.BAD_REQUEST, "at least one character"),
            ("%0A", Code.BAD_REQUEST, "printable"),
            ("%FF", Code.BAD_REQUEST, "printable"),
            ("%zz", Code.BAD_REQUEST, "two hex digits"),
            ("n" * 256, Code.TOO_LARGE, "consumer_name_bytes_max"),
            ("a/b", Code.NOT_FOUND, "no such route"),
        )
    ),
)
SESSION_HEADERS = (
    Bad("POST", "/v1/log", says, body=b"x", headers=headers)
    for headers, says in (
        ({"Raftlog-Session": "3"}, "go together"),
        ({"Raftlog-Sequence": "3"}, "go together"),
        ({"Raftlog-Settled": "3"}, "go together"),
        ({"Raftlog-Session": "0", "Raftlog-Sequence": "1"}, "Raftlog-Session is '0'"),
        ({"Raftlog-Session": "3", "Raftlog-Sequence": "-1"}, "Raftlog-Sequence is '-1'"),
        ({"Raftlog-Session": "3", "Raftlog-Sequence": "1.5"}, "Raftlog-Sequence"),
        ({"Raftlog-Session": "3", "Raftlog-Sequence": "9007199254740992"}, "Raftlog-Sequence"),
        ({"Raftlog-Session": "3", "Raftlog-Sequence": "1", "Raftlog-Settled": "2"}, "Raftlog-Settled"),
        ({"Raftlog-Sesion": "3", "Raftlog-Seqence": "1"}, "did you mean Raftlog-Session?"),
        ({"Raftlog-Time-Ms": "-5"}, "Raftlog-Time-Ms"),
    )
)
RECORDS = (
    *(
        Bad("POST", "/v1/log", says, body=body, headers=headers)
        for headers, body, says in (
            (JSON, b"[]", "no record"),
            (JSON, b"{", "body as JSON"),
            (JSON, b"[" * 100_000, "body as JSON"),
            (JSON, b'{"value":1}', "$.value"),
            (JSON, b'{"valeu":"x"}', "unknown field `valeu`: did you mean value?"),
            (JSON, b'{"a": 1}', 'A record is {"value": "…"}'),
            (JSON, b'{"a": 1}', "send it with Content-Type: application/octet-stream"),
            (JSON, b'{"value":"x","value_b64":"eA=="}', "both value and value_b64"),
            (JSON, b'{"value_b64":"&&"}', "value_b64 of record 0 is not base64"),
            (JSON, b'{"key":""}', "empty"),
            (JSON, b'{"time_ms":-1}', "$.time_ms"),
            (JSON, b'{"value":"\\ud800"}', "body as JSON"),
            (JSON, b'{"headers":[["a"]]}', "$.headers"),
            (NDJSON, b'{"value":"x"}\n{"value":2}\n', "line 2"),
            (NDJSON, b"\n\n", "no record"),
            (MSGPACK, b"\xc1", "body as msgpack"),
            (MSGPACK, b"\x91" * 100_000 + b"\x90", "body as msgpack"),
            (MSGPACK, msgpack.packb(["text"]), "body as msgpack"),
            (MSGPACK, msgpack.packb([[b"k", b"v", None]]), "3 elements"),
            (MSGPACK, msgpack.packb([["k", b"v", None, None]]), "key of record 0 is str"),
            (MSGPACK, msgpack.packb([[None, b"v", -1, None]]), "time_ms of record 0"),
            (MSGPACK, msgpack.packb([[None, b"v", None, [["a", "b"]]]]), "headers of record 0"),
            (MSGPACK, msgpack.packb([[None, b"v", None, 7]]), "headers of record 0"),
            (JSON | {"Raftlog-Key": "a"}, b'[{"value":"v"}]', "inside"),
        )
    ),
    Bad("POST", "/v1/log?key=a", "inside", body=b'[{"value":"v"}]', headers=JSON),
)
PLACES = (
    Bad("POST", "/v1/log/trim", "Expected `int` >= 1 - at `$.before`", body=b'{"before":0}'),
    Bad("POST", "/v1/log/trim", "missing required field `before`", body=b"{}"),
    Bad("POST", "/v1/kv/compact", "Expected `int` >= 1 - at `$.revision`", body=b'{"revision":0}'),
)
GET_K = b'{"operation":"get","key":"k"}'
PUT_K = b'{"operation":"put","key":"k","value":""}'
TRANSACTIONS = (
    *(
        Bad("POST", "/v1/kv/txn", says, body=body)
        for body, says in (
            (b"", "body as JSON"),
            (b"[]", "Expected `object`"),
            (b'{"orelse":[]}', "`orelse`: did you mean else?"),
            (b'{"then":[{"operation":"put","key":"k"}]}', "then[0] (put)"),
            (b'{"then":[{"operation":"get"}]}', "then[0] (get) has no key"),
            (b'{"else":[{"operation":"delete","key":"k","end":"l"}]}', "else[0] (delete)"),
            (b'{"then":[{"operation":"delete_range","key":"k"}]}', "no end"),
            (b'{"then":[{"operation":"delete","key":"k","limit":1}]}', "only get has a limit"),
            (b'{"then":[{"operation":"get","key":"k","limit":-1}]}', "limit"),
            (b'{"then":[{"operation":"append","key":"k"}]}', "append"),
            (b'{"then":[{"operation":"put","key":"","value":""}]}', "empty"),
            (b'{"compare":[{"target":"value","operator":"=","key":"k"}]}', "compare[0]"),
            (b'{"compare":[{"target":"mod","operator":"=","key":"k","value":"1"}]}', "number"),
            (b'{"compare":[{"target":"mod","operator":"~","key":"k","number":1}]}', "operator"),
            (b'{"compare":[' + b"{}," * 10 + b"{}]}", "compare"),
            (b'{"compare":[{"target":"mod","operatr":"="}]}', "`operatr` - at `$.compare[0]`: did you mean operator?"),
            (b'{"else":[{"operation":"get","colour":1}]}', "`$.else[0]`: known are end, end_b64, key"),
        )
    ),
    Bad("POST", "/v1/kv/txn", "txn_operations_max", Code.TOO_LARGE, b'{"then":[%b]}' % b",".join([GET_K] * 129)),
    Bad("POST", "/v1/kv/txn", "twice", Code.REFUSED, b'{"then":[%b,%b]}' % (PUT_K, PUT_K)),
)
COMMITS = (
    commit(Code.FOREIGN_LOG, f"this is log {LOG_ID}", generation=3, position=at(1, "ff" * 16)),
    commit(says='{"0": index}', generation=3, position={"log": LOG_ID, "next": {"1": 5}}),
    commit(says="index 1", generation=3, position=at(0)),
    commit(says="position.next", generation=3, position=at(-1)),
    commit(says="next", generation=3, position={"log": LOG_ID}),
    commit(says="position", generation=3),
    commit(says="generation", position=at(1)),
    commit(says="generation", generation=0, reset=True, position=at(1)),
    commit(says="owner", generation=3, position=at(1), owner="x"),
    commit(says="`force`: known are generation, ", generation=3, position=at(1), force=True),
    commit(Code.REFUSED, "beyond", generation=3, position=at(99)),
    commit(Code.TOO_LARGE, "consumer_owner_bytes_max", reset=True, position=at(1), owner="o" * 256),
)
REFUSED = (*ROUTES, *PARAMETERS, *PATHS, *SESSION_HEADERS, *RECORDS, *PLACES, *TRANSACTIONS, *COMMITS)


@pytest.mark.parametrize("bad", REFUSED, ids=[f"{number} {bad.target[:50]}" for number, bad in enumerate(REFUSED)])
async def test_a_bad_request_is_refused_by_name(served: Served, bad: Bad) -> None:
    """Nothing is guessed. Half a session, or a misspelt one, must not turn exactly-once into at-least-once without a
    word. What only the state machine can find out has a place in the log, and changes nothing there."""
    assert (await ask(served.port, "POST", "/v1/consumers/g/claim")).json()["generation"] == 3
    assert (await ask(served.port, "PUT", "/v1/kv/k", b"1")).status == 200
    problem = (await ask(served.port, bad.method, bad.target, bad.body, bad.headers)).problem()
    assert problem.code is bad.code
    assert bad.says in problem.message
    machine = served.node.machine
    assert (machine.revision, machine.consumers.get(b"g").next) == (2, 1)
    assert served.node.applied == 4 + (bad.code is Code.REFUSED)
