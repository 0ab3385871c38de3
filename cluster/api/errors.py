"""Defines the error codes, the one table of their outcomes, and the one shape of an error."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec

from raftlog.cluster.api.values import LeaderHint, Position


class Outcome(StrEnum):
    """What became of a write. A read's error says not_applied."""

    APPLIED = "applied"
    NOT_APPLIED = "not_applied"  # nothing changed, and never will
    UNKNOWN = "unknown"  # it may have happened; the same session and sequence may be retried


class Code(StrEnum):
    """Error codes; `ERRORS` has status, outcome and retryable of each."""

    BAD_REQUEST = "bad_request"  # malformed: body, parameter, header
    UNAUTHORIZED = "unauthorized"  # no certificate or token that counts
    FORBIDDEN = "forbidden"  # a grant is missing: `missing`; foreign Origin, another cluster's certificate
    BAD_HOST = "bad_host"  # unknown Host value
    NOT_FOUND = "not_found"  # no such route
    KEY_NOT_FOUND = "key_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    NOT_ACCEPTABLE = "not_acceptable"  # unknown format=
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    TOO_LARGE = "too_large"  # body, key, value, batch over its limit
    COMPARE_FAILED = "compare_failed"
    COMPACTED = "compacted"  # index below the oldest, or revision below the kept history
    INSIDE_ENTRY = "inside_entry"  # digest asked for inside an entry
    FUTURE_INDEX = "future_index"  # an index, revision or min_index that this log has not reached within the deadline
    SESSION_EXPIRED = "session_expired"  # or never existed: an earlier copy of the request may have been applied
    SEQUENCE_SETTLED = "sequence_settled"  # below the settled mark: an earlier copy may have been applied
    SEQUENCE_REUSED = "sequence_reused"  # same sequence, other bytes
    SEQUENCE_VOIDED = "sequence_voided"
    PERMISSION_LOST = "permission_lost"  # permitted when it was taken, not any more at its place in the log
    CONSUMER_NOT_FOUND = "consumer_not_found"
    CONSUMER_FENCED = "consumer_fenced"  # another owner claimed the group: `generation` and `position` are the group's
    CONSUMERS_FULL = "consumers_full"
    WINDOW_FULL = "window_full"  # more than 1,024 sequences open in a session
    SESSIONS_FULL = "sessions_full"
    REFUSED = "refused"  # the state machine refused a well-formed request (duplicate key in a transaction, ...)
    BUSY = "busy"  # a queue is full
    OVER_QUOTA = "over_quota"  # this user's own share of the node is used up: `retry_after`
    DISK_FULL = "disk_full"  # this node, or no majority of the voters, has room on its disk for a write
    NO_LEADER = "no_leader"  # no leader took the request within the deadline; it was never queued
    LEADER_LOST = "leader_lost"  # queued; the leader was lost before the outcome was known
    TIMEOUT = "timeout"  # queued; the deadline passed before the outcome was known
    DEADLINE = "deadline"  # the deadline passed before it was queued, or a read's deadline passed
    OVERWRITTEN = "overwritten"  # another entry was committed in its place
    SHUTTING_DOWN = "shutting_down"
    FENCED = "fenced"  # this node met a disk error, or its state is not the majority's, and serves no more
    STATES_DIFFER = "states_differ"  # no majority of the replicas has one state: nothing is written until one has
    FOREIGN_LOG = "foreign_log"  # a position that belongs to another log id
    MEMBERS_CHANGING = "members_changing"  # an earlier change or hand-over is not finished, or the leader is new
    MEMBERS_REFUSED = "members_refused"  # a change of the members, or a hand-over, that cannot be taken: `why`
    UNSUPPORTED = "unsupported"  # reserved for a later version
    INTERNAL = "internal"

    @classmethod
    def _missing_(cls, value: object) -> Code:
        """A code that a node of a later version sent: read as the code that promises least. The problem keeps its
        message, status, outcome and retryable."""
        return cls.INTERNAL


class ErrorRow(msgspec.Struct, frozen=True):
    """One row of the table of errors. `outcome` is that of the one sending that is answered (`outcome_of`)."""

    status: int
    outcome: Outcome
    retryable: bool


_N: Final = Outcome.NOT_APPLIED
_U: Final = Outcome.UNKNOWN
ERRORS: Final[dict[Code, ErrorRow]] = {
    Code.BAD_REQUEST: ErrorRow(400, _N, False),
    Code.UNAUTHORIZED: ErrorRow(401, _N, False),
    Code.FORBIDDEN: ErrorRow(403, _N, False),
    Code.BAD_HOST: ErrorRow(421, _N, False),
    Code.NOT_FOUND: ErrorRow(404, _N, False),
    Code.KEY_NOT_FOUND: ErrorRow(404, _N, False),
    Code.METHOD_NOT_ALLOWED: ErrorRow(405, _N, False),
    Code.NOT_ACCEPTABLE: ErrorRow(406, _N, False),
    Code.UNSUPPORTED_MEDIA_TYPE: ErrorRow(415, _N, False),
    Code.TOO_LARGE: ErrorRow(413, _N, False),
    Code.COMPARE_FAILED: ErrorRow(412, _N, False),
    Code.COMPACTED: ErrorRow(410, _N, False),
    Code.INSIDE_ENTRY: ErrorRow(422, _N, False),
    Code.FUTURE_INDEX: ErrorRow(425, _N, True),
    Code.SESSION_EXPIRED: ErrorRow(409, _U, False),
    Code.SEQUENCE_SETTLED: ErrorRow(409, _U, False),
    Code.SEQUENCE_REUSED: ErrorRow(409, _N, False),
    Code.SEQUENCE_VOIDED: ErrorRow(409, _N, False),
    Code.PERMISSION_LOST: ErrorRow(403, _N, False),
    Code.CONSUMER_NOT_FOUND: ErrorRow(404, _N, False),
    Code.CONSUMER_FENCED: ErrorRow(412, _N, False),
    Code.CONSUMERS_FULL: ErrorRow(429, _N, False),
    Code.WINDOW_FULL: ErrorRow(429, _N, True),
    Code.SESSIONS_FULL: ErrorRow(429, _N, True),
    Code.REFUSED: ErrorRow(422, _N, False),
    Code.BUSY: ErrorRow(429, _N, True),
    Code.OVER_QUOTA: ErrorRow(429, _N, True),
    Code.DISK_FULL: ErrorRow(507, _N, True),
    Code.NO_LEADER: ErrorRow(503, _N, True),
    Code.LEADER_LOST: ErrorRow(504, _U, True),
    Code.TIMEOUT: ErrorRow(504, _U, True),
    Code.DEADLINE: ErrorRow(503, _N, True),
    Code.OVERWRITTEN: ErrorRow(503, _N, True),
    Code.SHUTTING_DOWN: ErrorRow(503, _N, True),
    Code.FENCED: ErrorRow(503, _N, True),
    Code.STATES_DIFFER: ErrorRow(503, _N, True),
    Code.FOREIGN_LOG: ErrorRow(409, _N, False),
    Code.MEMBERS_CHANGING: ErrorRow(409, _N, True),
    Code.MEMBERS_REFUSED: ErrorRow(409, _N, False),
    Code.UNSUPPORTED: ErrorRow(501, _N, False),
    Code.INTERNAL: ErrorRow(500, _U, True),
}
DECIDED: Final = frozenset(
    {
        Code.COMPARE_FAILED,
        Code.REFUSED,
        Code.SEQUENCE_REUSED,
        Code.SEQUENCE_VOIDED,
        Code.PERMISSION_LOST,
        Code.CONSUMER_NOT_FOUND,
        Code.CONSUMER_FENCED,
        Code.CONSUMERS_FULL,
        Code.FUTURE_INDEX,
    }
)
"""Errors that the state machine decides for good: every copy of a request (session, sequence) gets the same."""


def outcome_of(code: Code, *, has_session: bool) -> Outcome:
    """The outcome that an error reports for a write. A write with a session may be the second copy of a request. A node
    that rejects this copy (`busy`, `no_leader`, `bad_host`) does not know the outcome of the first: `unknown`."""
    return Outcome.UNKNOWN if has_session and code not in DECIDED else ERRORS[code].outcome


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """The one shape of every error (RFC 9457 members `type`, `title`, `status`, `detail`; the rest is ours)."""

    code: Code
    message: str  # what happened, to which node, key or index, and what to do next
    status: int
    outcome: Outcome
    retryable: bool
    request_id: str
    node: int
    leader: LeaderHint | None = None
    index: int | None = None  # applied index of the node; compare_failed and refused: where that was decided
    term: int | None = None
    revision: int | None = None  # compare_failed: the key's current mod revision (0: missing); compacted: the oldest
    nearest: tuple[int, int] | None = None  # inside_entry: the ends of the entry before and of this one
    oldest: int | None = None  # compacted, of the log: the oldest index that can be read
    snapshot: int | None = None  # with it: the state of this index or a later one, then the log, leaves no gap
    next: int | None = None  # a stream that ends with this problem: go on from here
    generation: int | None = None  # consumer_fenced, and where a commit was refused: the group's
    position: Position | None = None  # as generation
    why: str | None = (
        None  # members_changing, members_refused: one word for the reason (`raftlog.raft.refusals.WhyRefused`)
    )
    missing: str | None = None  # forbidden: the grant that the user lacks
    retry_after: int | None = None  # over_quota: seconds
    type: str = "about:blank"
    title: str = ""
    detail: str = ""


class ApiError(Exception):
    """Raised by handlers and by clients: a `Problem` on its way."""

    def __init__(self, code: Code, message: str, **more: Any) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.more = more
        self.problem: Problem | None = None  # set by clients from the answer

    @property
    def row(self) -> ErrorRow:
        return ERRORS[self.code]


def make_problem(
    error: ApiError,
    *,
    node: int,
    request_id: str,
    leader: LeaderHint | None,
    index: int,
    term: int,
    has_session: bool = False,
) -> Problem:
    """The error as its client gets it. `index` and `term` are the node's unless the error has its own; `has_session`:
    the request is a write that names a session. The HTTP layer and the simulator call it."""
    row = error.row
    more = {"index": index, "term": term, "leader": leader, **error.more}
    return Problem(
        code=error.code,
        message=error.message if error.message.startswith("node ") else f"node {node}: {error.message}",
        status=row.status,
        outcome=outcome_of(error.code, has_session=has_session),
        retryable=row.retryable,
        request_id=request_id,
        node=node,
        title=error.code.replace("_", " "),
        detail=error.message,
        **more,
    )
