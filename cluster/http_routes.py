"""The table of routes, and finding one for a raw path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from cluster import (
    admin_api,
    http_append,
    http_backup,
    http_batch,
    http_consumers,
    http_digest,
    http_explain,
    http_kv,
    http_log,
    http_members,
    http_sessions,
    http_txn,
    http_watch,
)
from cluster.fast_head import KEY_PATH
from cluster.http_answer import Answer
from cluster.http_call import Call, Service
from cluster.http_log_stream import stream_log
from cluster.http_query import nearest_name
from cluster.http_stream import Stream
from cluster.wire import ApiError, Code

Handler = Callable[[Service, Call], Awaitable[Answer | Stream]]


class Route(NamedTuple):
    """One method of one pattern. `verb` is what the authorise step is asked for."""

    method: str
    pattern: str
    verb: str
    handler: Handler
    serves_fenced: bool = False  # also on a node that met a disk error; never refused as busy
    for_operators: bool = False  # has a share of its own where requests are refused as busy
    keeps_session: bool = False  # the same: without it sessions would expire because the node is busy


async def _get_log(service: Service, call: Call) -> Answer | Stream:
    """Committed records in order: a page, or a stream (NDJSON, raw) up to an index or following the log."""
    query = await http_log.parse_log_query(service, call)
    if query.format in ("ndjson", "raw"):
        return await stream_log(service, call, query)
    return await http_log.read_page(service, call, query)


ROUTES: Final = (
    Route("POST", "/v1/log", "append", http_append.append),
    Route("GET", "/v1/log", "read", _get_log),
    Route("POST", "/v1/log/trim", "trim", http_log.trim, for_operators=True),
    Route("GET", "/v1/kv/{key}", "get", http_kv.get),
    Route("PUT", "/v1/kv/{key}", "put", http_kv.put),
    Route("DELETE", "/v1/kv/{key}", "delete", http_kv.delete),
    Route("GET", "/v1/kv", "get", http_kv.get_range),
    Route("PUT", "/v1/kv", "put", http_kv.put),
    Route("DELETE", "/v1/kv", "delete", http_kv.delete_range),
    Route("POST", "/v1/kv/txn", "txn", http_txn.transact),
    Route("POST", "/v1/kv/batch", "put", http_batch.write),
    Route("POST", "/v1/kv/compact", "compact", http_kv.compact, for_operators=True),
    Route("GET", "/v1/watch", "watch", http_watch.watch),
    Route("POST", "/v1/sessions", "session", http_sessions.open_session),
    Route("DELETE", "/v1/sessions/{session}", "session", http_sessions.close_session),
    Route("POST", "/v1/sessions/{session}/keepalive", "session", http_sessions.keep_alive, keeps_session=True),
    Route("GET", "/v1/sessions/{session}/receipts/{sequence}", "session", http_sessions.get_receipt),
    Route("POST", "/v1/sessions/{session}/receipts/{sequence}/void", "session", http_sessions.void),
    Route("GET", "/v1/consumers", "consumer", http_consumers.get_consumers),
    Route("GET", "/v1/consumers/{consumer}", "consumer", http_consumers.get_consumer),
    Route("PUT", "/v1/consumers/{consumer}", "consumer", http_consumers.put_consumer),
    Route("DELETE", "/v1/consumers/{consumer}", "consumer", http_consumers.delete_consumer),
    Route("POST", "/v1/consumers/{consumer}/claim", "consumer", http_consumers.claim),
    Route("GET", "/v1/digest", "digest", http_digest.get_digest),
    Route("GET", "/v1/backup", "backup", http_backup.get_backup),
    Route("GET", "/v1/explain/leaderless", "status", http_explain.explain_leaderless, True),
    Route("GET", "/v1/explain/{index}", "status", http_explain.explain_index, for_operators=True),
    Route("GET", "/v1/status", "status", admin_api.get_status, True),
    Route("GET", "/v1/members", "status", admin_api.get_members, True),
    Route("POST", "/v1/members", "members", http_members.change_members, for_operators=True),
    Route("POST", "/v1/leader/transfer", "members", http_members.transfer_leadership, for_operators=True),
    Route("GET", "/livez", "health", admin_api.get_livez, True),
    Route("GET", "/readyz", "health", admin_api.get_readyz, True),
    Route("GET", "/metrics", "metrics", admin_api.get_metrics, True),
    Route("GET", "/version", "status", admin_api.get_version, True),
    Route("GET", "/openapi.yaml", "status", admin_api.get_openapi, True),
    Route("GET", "/", "status", admin_api.get_routes, True),
    Route("OPTIONS", "/", "health", admin_api.get_readyz, True),
)

_STREAMS: Final = ("/v1/backup", "/v1/log", "/v1/watch")
_BY_PATTERN: Final[dict[str, dict[str, Route]]] = {}
for _route in ROUTES:
    _methods = _BY_PATTERN.setdefault(_route.pattern, {})
    _methods[_route.method] = _route
    if _route.method == "GET" and _route.pattern not in _STREAMS:
        _methods["HEAD"] = _route
_FIXED: Final = {pattern: methods for pattern, methods in _BY_PATTERN.items() if "{" not in pattern}
_KEY: Final = _BY_PATTERN["/v1/kv/{key}"]
_OPERATORS: Final = {route.pattern for route in ROUTES if route.serves_fenced or route.for_operators}
_OPERATORS_FIXED: Final = frozenset(pattern for pattern in _OPERATORS if "{" not in pattern)
_OPERATORS_PARTS: Final = tuple(pattern.partition("{")[0] for pattern in _OPERATORS - _OPERATORS_FIXED)
_PART_PATHS: Final = ("/v1/sessions/", "/v1/consumers/", "/v1/explain/")
_PART_PATTERNS: Final = tuple(
    (tuple(pattern.split("/")), pattern) for pattern in _BY_PATTERN if pattern.startswith(_PART_PATHS)
)


def find_route(call: Call) -> Route:
    """The route; sets the call's variable parts. Raises ApiError not_found or method_not_allowed."""
    methods = _FIXED.get(call.path)
    if methods is not None:
        route = methods.get(call.method)
        if route is not None:
            return route
    if call.path.startswith(KEY_PATH):  # whatever follows is a key, as it is
        call.parts = (call.path[len(KEY_PATH) :],)
        methods = _KEY if methods is None else {**_KEY, **methods}  # POST /v1/kv/txn is no key
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
    """Whether it does not wait in line: it is asked by operators and their probes, or keeps a session alive."""
    path = target.partition("?")[0]
    return path in _OPERATORS_FIXED or path.startswith(_OPERATORS_PARTS) or path.endswith("/keepalive")


def allowed_methods(call: Call) -> str:
    """The value of an Allow header."""
    methods = dict(_FIXED.get(call.path, {}))
    if call.path.startswith(KEY_PATH):
        methods |= _KEY
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
    """What `/` lists: method, pattern, and the first line of the handler's docstring."""
    width = max(len(route.pattern) for route in ROUTES)
    return [
        f"{route.method:<6} {route.pattern:<{width}}  {(route.handler.__doc__ or '').splitlines()[0]}"
        for route in ROUTES
    ]
