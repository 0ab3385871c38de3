"""Lists the routes, and finds the route of a raw path."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from raftlog.cluster.admission.access import Need
from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.api.headers import BACKUP, NDJSON
from raftlog.cluster.http.exchange.answer import HttpAnswer
from raftlog.cluster.http.exchange.call import Call, Handled
from raftlog.cluster.http.exchange.query import KEY_PATH, nearest_name
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.http.exchange.stream import Stream
from raftlog.cluster.http.routes import (
    access,
    append,
    console,
    consumers,
    digest,
    explain,
    kv,
    kv_batch,
    log,
    login,
    members,
    observe,
    operator,
    sessions,
    txn,
    watch,
)
from raftlog.cluster.http.routes.log_stream import stream_log
from raftlog.statemachine.access import needs
from raftlog.statemachine.access.grants import Grant

Handler = Callable[[Service, Call], Handled]


class Route(NamedTuple):
    """One method of one pattern. `need`: what the gate asks of the sender while access control is on."""

    method: str
    pattern: str
    need: Need | Grant
    handler: Handler
    serves_fenced: bool = False  # served even by a fenced node; never refused as busy
    for_operators: bool = False  # has its own share while other requests are refused as busy
    keeps_session: bool = False  # as for_operators: otherwise sessions would expire while the node is busy
    takes_session: bool = True  # false: a write would be carried out for every copy
    is_first_admin: bool = False  # served by an exposed node while access control is off
    is_passed_on: bool = False  # a node that does not lead sends it to the leader, and names the user


async def _get_log(service: Service, call: Call) -> HttpAnswer | Stream:
    """Committed records in order: a page, or a stream (NDJSON, raw) up to an index or following the log."""
    query = await log.parse_log_query(service, call)
    if query.format in log.STREAMS:
        return await (_head_of_stream(service, call) if call.method == "HEAD" else stream_log(service, call, query))
    return await log.read_page(service, call, query)


async def _head_of_stream(service: Service, call: Call) -> HttpAnswer:
    """What HEAD gets where GET streams: that there is such a route, and that the sender may ask. Nothing is read."""
    return service.bare(b"", BACKUP if call.path == "/v1/backup" else NDJSON)


CONSOLE_FILES: Final = "/console/{file}"
_CHANGES_ALL: Final = {"for_operators": True, "takes_session": False}
ROUTES: Final = (
    Route("POST", "/v1/log", Need.PARTS, append.append),
    Route("GET", "/v1/log", needs.READ_LOG, _get_log),
    Route("GET", "/v1/log/density", needs.READ_LOG, observe.get_density),
    Route("POST", "/v1/log/trim", needs.OPERATE, log.trim, for_operators=True),
    Route("GET", "/v1/kv/{key}", Need.PARTS, kv.get),
    Route("PUT", "/v1/kv/{key}", Need.PARTS, kv.put),
    Route("DELETE", "/v1/kv/{key}", Need.PARTS, kv.delete),
    Route("GET", "/v1/kv", Need.PARTS, kv.get_range),
    Route("PUT", "/v1/kv", Need.PARTS, kv.put),
    Route("DELETE", "/v1/kv", Need.PARTS, kv.delete_range),
    Route("POST", "/v1/kv/txn", Need.PARTS, txn.transact),
    Route("POST", "/v1/kv/batch", Need.PARTS, kv_batch.write),
    Route("POST", "/v1/kv/compact", needs.OPERATE, kv.compact, for_operators=True),
    Route("GET", "/v1/watch", Need.PARTS, watch.watch),
    Route("POST", "/v1/sessions", Need.PRINCIPAL, sessions.open_session, takes_session=False),
    Route("DELETE", "/v1/sessions/{session}", Need.PRINCIPAL, sessions.close_session, takes_session=False),
    Route(
        "POST",
        "/v1/sessions/{session}/keepalive",
        Need.PRINCIPAL,
        sessions.keep_alive,
        keeps_session=True,
        takes_session=False,
    ),
    Route("GET", "/v1/sessions/{session}/receipts/{sequence}", Need.PRINCIPAL, sessions.get_receipt),
    Route(
        "POST", "/v1/sessions/{session}/receipts/{sequence}/void", Need.PRINCIPAL, sessions.void, takes_session=False
    ),
    Route("GET", "/v1/consumers", Need.PARTS, consumers.get_consumers),
    Route("GET", "/v1/consumers/{consumer}", Need.PARTS, consumers.get_consumer),
    Route("PUT", "/v1/consumers/{consumer}", Need.PARTS, consumers.put_consumer),
    Route("DELETE", "/v1/consumers/{consumer}", Need.PARTS, consumers.delete_consumer),
    Route("POST", "/v1/consumers/{consumer}/claim", Need.PARTS, consumers.claim),
    Route("POST", "/v1/login", Need.NOTHING, login.log_in, **_CHANGES_ALL),
    Route("DELETE", "/v1/login", Need.NOTHING, login.log_out, **_CHANGES_ALL),
    Route("GET", "/v1/access", needs.ACCESS, access.get_access, for_operators=True),
    Route("POST", "/v1/access", Need.PRINCIPAL, access.change_access, **_CHANGES_ALL, is_first_admin=True),
    Route("GET", "/v1/access/me", Need.PRINCIPAL, access.get_own, for_operators=True),
    Route("GET", "/v1/access/can", Need.PRINCIPAL, access.can, for_operators=True),
    Route("GET", "/v1/digest", needs.READ_LOG, digest.get_digest),
    Route("GET", "/v1/backup", needs.OPERATE, operator.get_backup),
    Route("POST", "/v1/snapshot", needs.OPERATE, operator.save_snapshot, **_CHANGES_ALL),
    Route("GET", "/v1/explain/leaderless", needs.WATCH, explain.explain_leaderless, True),
    Route("GET", "/v1/explain/{index}", needs.WATCH, explain.explain_index, for_operators=True, is_passed_on=True),
    Route("GET", "/v1/overview", needs.WATCH, observe.get_overview, True),
    Route("GET", "/v1/events", needs.WATCH, observe.get_events, True),
    Route("GET", "/v1/history", needs.WATCH, observe.get_history, True),
    Route("GET", "/v1/status", Need.PRINCIPAL, operator.get_status, True),
    Route("GET", "/v1/cluster", Need.PRINCIPAL, operator.get_cluster, True),
    Route("GET", "/v1/members", Need.PRINCIPAL, operator.get_members, True),
    Route("POST", "/v1/members", needs.MEMBERS, members.change_members, **_CHANGES_ALL, is_passed_on=True),
    Route("POST", "/v1/leader/transfer", needs.OPERATE, members.transfer_leadership, **_CHANGES_ALL, is_passed_on=True),
    Route("GET", "/livez", Need.NOTHING, operator.get_livez, True),
    Route("GET", "/readyz", Need.NOTHING, operator.get_readyz, True),
    Route("GET", "/metrics", needs.WATCH, operator.get_metrics, True),
    Route("GET", "/version", Need.PRINCIPAL, operator.get_version, True),
    Route("GET", "/openapi.yaml", Need.PRINCIPAL, operator.get_openapi, True),
    Route("GET", "/", Need.NOTHING, console.get_start, True),
    Route("GET", CONSOLE_FILES, Need.NOTHING, console.get_file, True),
    Route("OPTIONS", "/", Need.NOTHING, operator.get_readyz, True),
)

_DESCRIBED: Final = re.compile(r"^  (/\S*):$|^    ([a-z]+):$|^      summary: (.+)$", re.MULTILINE)
"""The path, the method or the summary of an operation in openapi.yaml."""
_STREAMS: Final = ("/v1/backup", "/v1/watch")
_BY_PATTERN: Final[dict[str, dict[str, Route]]] = {}
for _route in ROUTES:
    _methods = _BY_PATTERN.setdefault(_route.pattern, {})
    _methods[_route.method] = _route
    if _route.method == "GET":
        is_stream = _route.pattern in _STREAMS
        _methods["HEAD"] = _route._replace(method="HEAD", handler=_head_of_stream) if is_stream else _route
_FIXED: Final = {pattern: methods for pattern, methods in _BY_PATTERN.items() if "{" not in pattern}
KEY_ROUTES: Final = _BY_PATTERN["/v1/kv/{key}"]
_OPERATORS: Final = {route.pattern for route in ROUTES if route.serves_fenced or route.for_operators}
_OPERATORS_FIXED: Final = frozenset(pattern for pattern in _OPERATORS if "{" not in pattern)
_OPERATORS_PARTS: Final = tuple(pattern.partition("{")[0] for pattern in _OPERATORS - _OPERATORS_FIXED)
_PART_PATHS: Final = ("/v1/sessions/", "/v1/consumers/", "/v1/explain/")
_PART_PATTERNS: Final = tuple(
    (tuple(pattern.split("/")), pattern) for pattern in _BY_PATTERN if pattern.startswith(_PART_PATHS)
)


def find_route(call: Call) -> Route:
    """The route; sets the key or the variable parts of the call. Raises ApiError not_found or method_not_allowed."""
    methods = _FIXED.get(call.path)
    if methods is not None:
        route = methods.get(call.method)
        if route is not None:
            return route
    if call.path.startswith(KEY_PATH):  # everything after it is a key, as it is
        call.key = call.path[len(KEY_PATH) :]
        methods = KEY_ROUTES if methods is None else {**KEY_ROUTES, **methods}  # POST /v1/kv/txn is no key
    elif call.path.startswith(_PART_PATHS):
        methods = _part_methods(call)
    elif call.path.startswith(console.PATH):
        methods = _BY_PATTERN[CONSOLE_FILES]
    if methods is None:
        raise ApiError(Code.NOT_FOUND, f"no such route: {call.path[:200]!r}; {nearest_name(call.path, _FIXED)}")
    route = methods.get(call.method)
    if route is None:
        call.allowed = ", ".join(sorted(methods))
        why = f"{call.method} is not for {call.path[:200]!r}: it takes {call.allowed}"
        raise ApiError(Code.METHOD_NOT_ALLOWED, why)
    return route


def has_share(target: str) -> bool:
    """Whether it need not wait in line: requests of operators and probes, and keepalives of sessions."""
    path = target.partition("?")[0]
    return path in _OPERATORS_FIXED or path.startswith(_OPERATORS_PARTS) or path.endswith("/keepalive")


def _part_methods(call: Call) -> dict[str, Route] | None:
    parts = call.path.split("/")
    for names, pattern in _PART_PATTERNS:
        if len(names) == len(parts) and all(
            name == part or name.startswith("{") for name, part in zip(names, parts, strict=True)
        ):
            call.parts = tuple(part for name, part in zip(names, parts, strict=True) if name.startswith("{"))
            return _BY_PATTERN[pattern]
    return None


def route_lines() -> list[str]:
    """The lines that `/` lists: method, pattern, and the summary in openapi.yaml."""
    summaries: dict[tuple[str, str], str] = {}
    pattern = method = ""
    for path, verb, summary in _DESCRIBED.findall(operator.OPENAPI.decode()):
        pattern, method = path or pattern, verb.upper() or method
        if summary:
            summaries[method, pattern] = summary
    width = max(len(route.pattern) for route in ROUTES)
    return [f"{route.method:<6} {route.pattern:<{width}}  {summaries[route.method, route.pattern]}" for route in ROUTES]
