"""Names the headers and media types of requests and answers."""

from __future__ import annotations

from typing import Final

# Request headers.
H_SESSION: Final = "Raftlog-Session"
H_SEQUENCE: Final = "Raftlog-Sequence"
H_SETTLED: Final = "Raftlog-Settled"  # the client's lowest unanswered sequence
H_DEADLINE: Final = "Raftlog-Deadline-Ms"  # how long the client waits, from now
H_REQUEST_ID: Final = "Raftlog-Request-Id"
H_KEY: Final = "Raftlog-Key"  # key of a raw appended record, percent-encoded
H_TIME: Final = "Raftlog-Time-Ms"  # client event time of a raw appended record
H_PRINCIPAL: Final = "Raftlog-Principal"  # the user whose request a node passes on
H_LOG: Final = "Raftlog-Log"  # the log that the client means; of an answer: that of the node
H_PASSED_ON: Final = "Raftlog-Passed-On"  # the node that passed the request on to this one, which answers by itself
H_TRACEPARENT: Final = "traceparent"  # the span of the client (W3C Trace Context); in lower case on the fast path
REQUEST_HEADERS: Final = (
    H_SESSION,
    H_SEQUENCE,
    H_SETTLED,
    H_DEADLINE,
    H_REQUEST_ID,
    H_KEY,
    H_TIME,
    H_LOG,
    H_PASSED_ON,
    H_PRINCIPAL,
)
# Answer headers (every answer that has them in its body repeats them here, raw streams have them only here).
H_INDEX: Final = "Raftlog-Index"
H_TERM: Final = "Raftlog-Term"
H_NODE: Final = "Raftlog-Node"
H_NEXT: Final = "Raftlog-Next"
H_TRACERESPONSE: Final = "traceresponse"  # the span of a traced request
JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
MSGPACK: Final = "application/msgpack"
RAW: Final = "application/vnd.raftlog.raw"
BACKUP: Final = "application/vnd.raftlog.backup"
SSE: Final = "text/event-stream"
PROBLEM: Final = "application/problem+json"
