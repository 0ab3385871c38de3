"""Lists the routes, and finds the route of a raw path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.http.exchange.answer import HttpAnswer
from raftlog.cluster.http.exchange.call import Call, Handled, Service
from raftlog.cluster.http.exchange.query import KEY_PATH, nearest_name
from raftlog.cluster.http.exchange.stream import Stream
from raftlog.cluster.http.routes import (
    append,
    backup,
    consumers,
    digest,
    explain,
    kv,
    kv_batch,
    log,
    members,
    operator,
    sessions,
    txn,
    watch,
)
from raftlog.cluster.http.routes.log_stream import stream_log

Handler = Callable[[Service, Call], Handled]


class Route(NamedTuple):
    """One method of one pattern. `verb` is the verb for the authorise step."""

    method: str
    pattern: str
    verb: str
    handler: Handler
    serves_fenced: bool = False  # served even by a fenced node; never refused as busy
    for_operators: bool = False  # has its own share while other requests are refused as busy
    keeps_session: bool = False  # as for_operators: otherwise sessions would expire while the node is busy


async def _get_log(service: Service, call: Call) -> HttpAnswer | Stream:
    """Committed records in order: a page, or a stream (NDJSON, raw) up to an index or following the log."""
    query = await log.parse_log_query(service, call)
    if query.format in ("ndjson", "raw"):
        return await stream_log(service, call, query)
    return await log.read_page(service, call, query)


ROUTES: Final = (
    Route("POST", "/v1/log", "append", append.append),
    Route("GET", "/v1/log", "read", _get_log),
    Route("POST", "/v1/log/trim", "trim", log.trim, for_operators=True),
    Route("GET", "/v1/kv/{key}", "get", kv.get),
    Route("PUT", "/v1/kv/{key}", "put", kv.put),
    Route("DELETE", "/v1/kv/{key}", "delete", kv.delete),
    Route("GET", "/v1/kv", "get", kv.get_range),
    Route("PUT", "/v1/kv", "put", kv.put),
    Route("DELETE", "/v1/kv", "delete", kv.delete_range),
    Route("POST", "/v1/kv/txn", "txn", txn.transact),
    Route("POST", "/v1/kv/batch", "put", kv_batch.write),
    Route("POST", "/v1/kv/compact", "compact", kv.compact, for_operators=True),
    Route("GET", "/v1/watch", "watch", watch.watch),
    Route("POST", "/v1/sessions", "session", sessions.open_session),
    Route("DELETE", "/v1/sessions/{session}", "session", sessions.close_session),
    Route("POST", "/v1/sessions/{session}/keepalive", "session", sessions.keep_alive, keeps_session=True),
    Route("GET", "/v1/sessions/{session}/receipts/{sequence}", "session", sessions.get_receipt),
    Route("POST", "/v1/sessions/{session}/receipts/{sequence}/void", "session", sessions.void),
    Route("GET", "/v1/consumers", "consumer", consumers.get_consumers),
    Route("GET", "/v1/consumers/{consumer}", "consumer", consumers.get_consumer),
    Route("PUT", "/v1/consumers/{consumer}", "consumer", consumers.put_consumer),
    Route("DELETE", "/v1/consumers/{consumer}", "consumer", consumers.delete_consumer),
    Route("POST", "/v1/consumers/{consumer}/claim", "consumer", consumers.claim),
    Route("GET", "/v1/digest", "digest", digest.get_digest),
    Route("GET", "/v1/backup", "backup", backup.get_backup),
    Route("GET", "/v1/explain/leaderless", "status", explain.explain_leaderless, True),
    Route("GET", "/v1/explain/{index}", "status", explain.explain_index, for_operators=True),
    Route("GET", "/v1/status", "status", operator.get_status, True),
    Route("GET", "/v1/members", "status", operator.get_members, True),
    Route("POST", "/v1/members", "members", members.change_members, for_operators=True),
    Route("POST", "/v1/leader/transfer", "members", members.transfer_leadership, for_operators=True),
    Route("GET", "/livez", "health", operator.get_livez, True),
    Route("GET", "/readyz", "health", operator.get_readyz, True),
    Route("GET", "/metrics", "metrics", operator.get_metrics, True),
    Route("GET", "/version", "status", operator.get_version, True),
    Route("GET", "/openapi.yaml", "status", operator.get_openapi, True),
    Route("GET", "/", "status", operator.get_routes, True),
    Route("OPTIONS", "/", "health", operator.get_readyz, True),
)

_STREAMS: Final = ("/v1/backup", "/v1/log", "/v1/watch")
_BY_PATTERN: Final[dict[str, dict[str, Route]]] = {}
for _route in ROUTES:
    _methods = _BY_PATTERN.setdefault(_route.pattern, {})
    _methods[_route.method] = _route
    if _route.method == "GET" and _route.pattern not in _STREAMS:
        _methods["HEAD"] = _route
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
    if methods is None:
        raise ApiError(Code.NOT_FOUND, f"no such route: {call.path[:200]!r}; {nearest_name(call.path, _FIXED)}")
    route = methods.get(call.method)
    if route is None:
        allowed = ", ".join(sorted(methods))
        raise ApiError(Code.METHOD_NOT_ALLOWED, f"{call.method} is not for {call.path[:200]!r}: it takes {allowed}")
    return route


def has_share(target: str) -> bool:
    """Whether it need not wait in line: requests of operators and probes, and keepalives of sessions."""
    path = target.partition("?")[0]
    return path in _OPERATORS_FIXED or path.startswith(_OPERATORS_PARTS) or path.endswith("/keepalive")


def allowed_methods(call: Call) -> str:
    """The value of an Allow header."""
    methods = dict(_FIXED.get(call.path, {}))
    if call.path.startswith(KEY_PATH):
        methods |= KEY_ROUTES
    elif call.path.startswith(_PART_PATHS):
        methods |= _part_methods(call) or {}
    return ", ".join(sorted(methods))


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
    """The lines that `/` lists: method, pattern, and the first line of the handler's docstring."""
    width = max(len(route.pattern) for route in ROUTES)
    return [
        f"{route.method:<6} {route.pattern:<{width}}  {(route.handler.__doc__ or '').splitlines()[0]}"
        for route in ROUTES
    ]
