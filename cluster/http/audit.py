"""Keeps a log of its own about what users changed at this node, and about requests that were refused.

The gate asks for each answer. Changes of permissions, of members and of history, hand-overs, backups and deletes by
range have a line each. Requests that were refused, or changed nothing, have few lines for each reason, because a sender
may cause any number. What changed the cluster is in the replicated log as well, with its user: `raftlog audit` reads
it there.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final

from raftlog.cluster.api.errors import ERRORS, Code, Outcome
from raftlog.cluster.http.exchange.call import Call
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.line_limit import LineLimit
from raftlog.cluster.runtime.log_file import LogSink
from raftlog.cluster.runtime.logging import get_logger
from raftlog.cluster.security.tokens import redacted

_TXN: Final = "/v1/kv/txn"
_LOGIN: Final = "/v1/login"
_CHANGING: Final = frozenset(
    {
        ("POST", "/v1/access"),
        ("POST", _LOGIN),
        ("POST", "/v1/members"),
        ("POST", "/v1/leader/transfer"),
        ("GET", "/v1/backup"),
        ("POST", "/v1/snapshot"),
        ("POST", "/v1/log/trim"),
        ("POST", "/v1/kv/compact"),
        ("DELETE", "/v1/kv"),
        ("POST", _TXN),
    }
)
"""Method and pattern of the routes whose requests have a line, whatever came of them. Of transactions only those that
delete ranges."""
AUDITED: Final = frozenset(pattern for _, pattern in _CHANGING)
REFUSALS: Final = frozenset({Code.UNAUTHORIZED, Code.FORBIDDEN, Code.PERMISSION_LOST})
_TARGET_MAX: Final = 300


def _changed_nothing(call: Call, code: str) -> bool:
    """Whether the request failed for sure. Anybody may send such requests, a login even without a name."""
    return code != "" and (
        call.route == _LOGIN or (code in ERRORS and ERRORS[Code(code)].outcome is Outcome.NOT_APPLIED)
    )


class AuditLog:
    """The audit log of one node. Belongs to the event loop."""

    def __init__(self, node: int, file: LogSink | None) -> None:
        """`file`: None for lines in the node's own log."""
        self._node = node
        self._file = file
        self._logger = get_logger(node=node)
        self._limit = LineLimit()

    def answered(self, call: Call, status: int, code: str) -> None:
        is_change = (call.method, call.route) in _CHANGING and (call.action or call.route != _TXN)
        result = "refused" if code in REFUSALS else "failed" if code else "carried_out"
        if code in REFUSALS or (is_change and _changed_nothing(call, code)):
            name = "" if call.caller is None else call.caller.name
            if self._limit.allows(f"{name} {call.method} {call.route} {code}"):
                self._write(result, call, status, code, self._limit.take_left_out())
        elif is_change:
            self._write(result, call, status, code, 0)

    def _write(self, result: str, call: Call, status: int, code: str, left_out: int) -> None:
        fields: dict[str, str | int] = {
            "event": "audit",
            "node": self._node,
            "result": result,
            "user": "" if call.caller is None else call.caller.name,
            "method": call.method,
            "target": redacted(call.target)[:_TARGET_MAX],
            "status": status,
            "request_id": call.request_id,
        }
        if call.caller is not None and call.caller.is_vouched and call.holder is not None:
            fields["passed_on_by"] = str(call.holder)
        fields |= {"code": str(code)} if code else {}
        fields |= {"action": call.action} if call.action else {}
        fields |= {"left_out": left_out} if left_out else {}
        if self._file is None:
            del fields["event"]
            self._logger.info("audit", **fields)
            return
        fields["timestamp"] = datetime.fromtimestamp(clock.wall_ms() / 1_000, UTC).isoformat(timespec="milliseconds")
        self._file.write(json.dumps(fields, ensure_ascii=False).encode() + b"\n")
