"""Public request and answer types, the outcome table of errors, and the one authorise step.

These are the JSON (and msgpack) shapes of DESIGN section 6; docs/http_api.md shows them with examples. Bytes travel
as text where they are valid UTF-8 (`key`, `value`), else base64 (`key_b64`, `value_b64`); see `Encoding`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

import msgspec

NUMBER_MAX: Final = 2**53 - 1
"""index, term, revision, session and sequence are JSON numbers up to here."""

Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
"""A number in a request body: refused by name when it is negative or not exact in JSON."""

# Request headers.
H_SESSION: Final = "Raftlog-Session"
H_SEQUENCE: Final = "Raftlog-Sequence"
H_SETTLED: Final = "Raftlog-Settled"  # the client's lowest unanswered sequence
H_DEADLINE: Final = "Raftlog-Deadline-Ms"  # how long the client waits, from now
H_REQUEST_ID: Final = "Raftlog-Request-Id"
H_KEY: Final = "Raftlog-Key"  # key of a raw appended record, percent-encoded
H_TIME: Final = "Raftlog-Time-Ms"  # client event time of a raw appended record
H_PASSED_ON: Final = "Raftlog-Passed-On"  # the node that passed the request on to this one, which answers by itself
# Answer headers (every answer that has them in its body repeats them here, raw streams have them only here).
H_INDEX: Final = "Raftlog-Index"
H_TERM: Final = "Raftlog-Term"
H_LOG: Final = "Raftlog-Log"
H_NODE: Final = "Raftlog-Node"
H_NEXT: Final = "Raftlog-Next"

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
MSGPACK: Final = "application/msgpack"
RAW: Final = "application/vnd.raftlog.raw"
BACKUP: Final = "application/vnd.raftlog.backup"
SSE: Final = "text/event-stream"
PROBLEM: Final = "application/problem+json"


class Outcome(StrEnum):
    """What became of a write. A read's error says not_applied."""

    APPLIED = "applied"
    NOT_APPLIED = "not_applied"  # nothing changed, and never will
    UNKNOWN = "unknown"  # it may have happened; the same session and sequence may be retried


class Code(StrEnum):
    """Error codes; `ERRORS` has status, outcome and retryable of each."""

    BAD_REQUEST = "bad_request"  # malformed: body, parameter, header
    UNAUTHORIZED = "unauthorized"  # reserved: no or wrong token
    FORBIDDEN = "forbidden"  # authorise said no, foreign Origin
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
    CONSUMER_NOT_FOUND = "consumer_not_found"
    CONSUMER_FENCED = "consumer_fenced"  # another owner claimed the group: `generation` and `position` are the group's
    CONSUMERS_FULL = "consumers_full"
    WINDOW_FULL = "window_full"  # more than 1,024 sequences open in a session
    SESSIONS_FULL = "sessions_full"
    REFUSED = "refused"  # the state machine refused a well-formed request (duplicate key in a transaction, ...)
    BUSY = "busy"  # a queue is full
    DISK_FULL = "disk_full"  # this node, or no majority of the voters, has room on its disk for a write
    NO_LEADER = "no_leader"  # nobody could take it within the deadline; it was never queued
    LEADER_LOST = "leader_lost"  # queued, and the leader was lost before its fate was known
    TIMEOUT = "timeout"  # queued, and the deadline passed before its fate was known
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


class ErrorRow(msgspec.Struct, frozen=True):
    """One row of the table of errors. `outcome` is that of the one sending that is answered (`outcome_of`)."""

    status: int
    outcome: Outcome
    retryable: bool


_N, _U = Outcome.NOT_APPLIED, Outcome.UNKNOWN
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
    Code.CONSUMER_NOT_FOUND: ErrorRow(404, _N, False),
    Code.CONSUMER_FENCED: ErrorRow(412, _N, False),
    Code.CONSUMERS_FULL: ErrorRow(429, _N, False),
    Code.WINDOW_FULL: ErrorRow(429, _N, True),
    Code.SESSIONS_FULL: ErrorRow(429, _N, True),
    Code.REFUSED: ErrorRow(422, _N, False),
    Code.BUSY: ErrorRow(429, _N, True),
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

DECIDED: Final = frozenset({
    Code.COMPARE_FAILED, Code.REFUSED, Code.SEQUENCE_REUSED, Code.SEQUENCE_VOIDED, Code.CONSUMER_NOT_FOUND,
    Code.CONSUMER_FENCED, Code.CONSUMERS_FULL, Code.FUTURE_INDEX,
})  # fmt: skip
"""What the state machine decides about a sequence of a session for good: every copy is told the same."""


def outcome_of(code: Code, *, has_session: bool) -> Outcome:
    """What an error says of a write. A write with a session may have been sent before, and a node that refuses this
    copy (`busy`, `no_leader`, `bad_host`) does not know what became of an earlier one. The state machine does."""
    return Outcome.UNKNOWN if has_session and code not in DECIDED else ERRORS[code].outcome


class LeaderHint(msgspec.Struct, frozen=True):
    """Where the leader was last seen."""

    node: int
    url: str


SHARD: Final = "0"
"""As positions name it: one Raft group today; more, later, need no other format."""


class Position(msgspec.Struct, frozen=True):
    """Position of a consumer, checkpoint or manifest: {"log": id, "next": {"0": index}}; the 0 is the shard."""

    log: str
    next: dict[str, int]


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """The one shape of every error (RFC 9457 members `type`, `title`, `status`, `detail`; the rest is ours)."""

    code: Code
    message: str  # names the node, what was wrong, and how to mend it
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
    why: str | None = None  # members_changing, members_refused: one word for the reason (`raft.refusals.WhyRefused`)
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
        """Status, outcome and retryable of its code."""
        return ERRORS[self.code]


# ---------------------------------------------------------------------------------------------------------------
# Bytes as text or base64.

Encoding = Literal["auto", "base64"]
"""auto: text where valid UTF-8; base64: always the `_b64` fields."""


def as_text(data: bytes, encoding: Encoding = "auto") -> str | None:
    """The bytes as text, or None where the `_b64` field must be used."""
    if encoding == "base64":
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def to_b64(data: bytes) -> str:
    """Standard base64 with padding."""
    return base64.b64encode(data).decode("ascii")


def from_b64(text: str, what: str) -> bytes:
    """Strict base64 (standard or URL alphabet). Raises ApiError bad_request naming `what`."""
    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ApiError(Code.BAD_REQUEST, f"{what} is not base64: {error}") from error


# ---------------------------------------------------------------------------------------------------------------
# Log.


class RecordIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record to append. Text or base64, not both; all may be absent except that some value is usual."""

    value: str | None = None
    value_b64: str | None = None
    key: str | None = None
    key_b64: str | None = None
    headers: list[tuple[str, str]] | None = None  # values as text
    time_ms: Number | None = None  # the client's event time


class Appended(msgspec.Struct, frozen=True):
    """The answer to an append. The records have the indexes first..last. `index` = last."""

    outcome: Outcome
    result: str  # applied | repeated
    first: int
    last: int
    count: int
    index: int
    term: int


class ChangeJson(msgspec.Struct, frozen=True, omit_defaults=True):
    """One key's change: in a log record, and in a message of a watch (which alone has `prior_index`)."""

    deleted: bool
    create: int
    mod: int
    version: int
    key: str | None = None
    key_b64: str | None = None
    value: str | None = None
    value_b64: str | None = None
    prior_index: int | None = None  # log index of the request that wrote the version replaced; 0: there was none


class ChangePacked(msgspec.Struct, frozen=True, omit_defaults=True):
    """One key's change in msgpack."""

    deleted: bool
    create: int
    mod: int
    version: int
    key: bytes
    value: bytes | None = None


class LogRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A committed record as JSON. `headers` are text where every value is UTF-8, else `headers_b64`."""

    index: int
    term: int
    time_ms: int
    kind: str  # noop | configuration | clock | commands
    operation: str  # append | put | delete | delete_range | txn | ... ; "" where the kind has none
    result: str = "applied"
    key: str | None = None
    key_b64: str | None = None
    value: str | None = None
    value_b64: str | None = None
    headers: list[tuple[str, str]] | None = None
    headers_b64: list[tuple[str, str]] | None = None
    client_time_ms: int | None = None
    argument: int | None = None  # if_revision of a put or delete, ttl of a session, …; see statemachine.commands
    session: int | None = None
    sequence: int | None = None
    revision: int | None = None
    succeeded: bool | None = None  # transactions
    prior_index: int | None = None  # a put or delete that applied: index of the version it replaced (0: none)
    create: int | None = None
    version: int | None = None
    changes: list[ChangeJson] | None = None  # what the command's own bytes do not tell: transactions, range deletes


class LogRecordPacked(msgspec.Struct, frozen=True, omit_defaults=True):
    """The same as msgpack: bytes are bytes."""

    index: int
    term: int
    time_ms: int
    kind: str
    operation: str
    result: str = "applied"
    key: bytes | None = None
    value: bytes | None = None
    headers: list[tuple[str, bytes]] | None = None
    client_time_ms: int | None = None
    argument: int | None = None
    session: int | None = None
    sequence: int | None = None
    revision: int | None = None
    succeeded: bool | None = None
    prior_index: int | None = None
    create: int | None = None
    version: int | None = None
    changes: list[ChangePacked] | None = None


class LogPage(msgspec.Struct, frozen=True):
    """One page of the log (format=json)."""

    log: str
    records: list[LogRecord]
    next: int  # read on from here
    oldest: int
    committed: int
    last_user_index: int
    index: int  # applied index of the answering node
    term: int


class LogPagePacked(msgspec.Struct, frozen=True):
    """One page of the log (format=msgpack)."""

    log: str
    records: list[LogRecordPacked]
    next: int
    oldest: int
    committed: int
    last_user_index: int
    index: int
    term: int


class LogProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of an NDJSON stream that is no record (it has no `operation`): how far it is. The last line is one."""

    log: str
    next: int
    oldest: int
    committed: int
    last_user_index: int
    index: int
    term: int
    problem: Problem | None = None  # why the stream ends here: a slow reader, a stop, a compaction


class WatchMessage(msgspec.Struct, frozen=True):
    """All changes of one index, in order. Its event id is the index."""

    index: int
    term: int
    time_ms: int
    revision: int
    changes: list[ChangeJson]


class WatchProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything up to this index has been told; the first message of a watch is one."""

    progress: int
    problem: Problem | None = None


# ---------------------------------------------------------------------------------------------------------------
# Key-value store.


class KeyValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """One key with its version numbers."""

    create: int
    mod: int
    version: int
    key: str | None = None
    key_b64: str | None = None
    value: str | None = None
    value_b64: str | None = None


class Got(msgspec.Struct, frozen=True):
    """The answer to a get (JSON); with `Accept: application/octet-stream` the bare value and headers instead."""

    kv: KeyValue
    revision: int
    index: int
    term: int


class Ranged(msgspec.Struct, frozen=True):
    """One page of a range, all pages at the state of the first: pass `continuation` back to go on."""

    kvs: list[KeyValue]
    more: bool
    count: int  # keys in the range in all
    continuation: str | None
    revision: int
    index: int
    term: int


class Written(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a put or delete."""

    outcome: Outcome
    result: str  # applied | repeated
    revision: int
    index: int
    term: int
    deleted: int = 0  # keys deleted
    previous: KeyValue | None = None  # reserved: with prev_kv=true


class WriteIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One write of a batch: a put of a value, or a delete."""

    key: str | None = None
    key_b64: str | None = None
    value: str | None = None
    value_b64: str | None = None
    delete: bool = False
    if_revision: Number | None = None
    sequence: Number = 0  # of the session that the header names


class BatchIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Independent writes that travel together, each with a sequence of its own where there is a session."""

    writes: list[WriteIn]


class BatchItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one write of a batch: one of the two."""

    written: Written | None = None
    problem: Problem | None = None


class BatchAnswer(msgspec.Struct, frozen=True):
    """The answer to a batch: one result for each write, in their order."""

    results: list[BatchItem]


class CompareIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One comparison; `end` makes it a range."""

    target: Literal["value", "version", "create", "mod"]
    operator: Literal["=", "!=", "<", ">"]
    key: str | None = None
    key_b64: str | None = None
    end: str | None = None
    end_b64: str | None = None
    value: str | None = None
    value_b64: str | None = None
    number: Number | None = None


class OperationIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One step of a branch."""

    operation: Literal["put", "delete", "delete_range", "get"]
    key: str | None = None
    key_b64: str | None = None
    value: str | None = None
    value_b64: str | None = None
    end: str | None = None
    end_b64: str | None = None
    limit: Number = 0


class TxnIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"orelse": "else"}):
    """A transaction: {"compare": [...], "then": [...], "else": [...]}."""

    compare: list[CompareIn] = []
    then: list[OperationIn] = []
    orelse: list[OperationIn] = []


class TxnResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one step of the branch answered."""

    operation: str
    kvs: list[KeyValue] | None = None  # get
    count: int | None = None  # get
    deleted: int | None = None  # delete, delete_range


class TxnAnswer(msgspec.Struct, frozen=True):
    """The answer to a transaction; `succeeded` is false when the else branch ran: that too is applied."""

    outcome: Outcome
    result: str
    succeeded: bool
    responses: list[TxnResponse]
    revision: int
    index: int
    term: int


class CompactIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Key history below `revision` may go."""

    revision: Number


class TrimIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Records of the log below `before` may go."""

    before: Number


class Trimmed(msgspec.Struct, frozen=True):
    """The answer to a trim of the log; `note` says when the disk space is freed."""

    outcome: Outcome
    oldest: int
    index: int
    term: int
    note: str = ""  # empty from a node of an older version


class Compacted(msgspec.Struct, frozen=True):
    """The answer to a compaction of key history."""

    outcome: Outcome
    oldest_revision: int
    revision: int
    index: int
    term: int


# ---------------------------------------------------------------------------------------------------------------
# Sessions.


class SessionIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a new session asks for."""

    ttl_ms: Number = 600_000


class SessionAnswer(msgspec.Struct, frozen=True):
    """A session; its id is the index of its registration."""

    session: int
    ttl_ms: int
    index: int
    term: int
    outcome: Outcome = Outcome.APPLIED


class SessionDone(msgspec.Struct, frozen=True):
    """The answer to keepalive and close."""

    session: int
    index: int
    term: int
    outcome: Outcome = Outcome.APPLIED


class Receipt(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a sequence. `state`: applied | not_seen | voided | settled (below the client's settled mark)."""

    session: int
    sequence: int
    state: str
    index: int  # state as of here
    term: int
    first: int | None = None  # applied: indexes of its records
    last: int | None = None
    revision: int | None = None
    result: str | None = None  # applied | compare_failed | refused


# ---------------------------------------------------------------------------------------------------------------
# Verify and operate.


class SetDigest(msgspec.Struct, frozen=True):
    """Digest of a set of rows: count, xor and the two half sums of their 64-bit hashes, the last three as hex."""

    count: int
    xor: str  # 16 hex digits
    sum_low: str  # hex
    sum_high: str  # hex


DIGEST_FORMAT: Final = 1
"""Which columns and chains the digests are made of (statemachine.digest)."""


class DigestAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """State digest at the end of entry `index`; where `log_from` was asked also the log digest of [log_from, index].

    With `log_from`, `state` is None where it is no longer remembered, or `index` lies inside an entry: digests of parts
    of the log are answered for any range.
    """

    log: str
    index: int
    term: int
    revision: int
    state: SetDigest | None
    format: int  # of both digests: DIGEST_FORMAT
    log_from: int | None = None
    log_digest: SetDigest | None = None


FINGERPRINT_CHARS: Final = 8
"""Of a disk's fingerprint: enough to tell the disks of one cluster apart."""


def fingerprint(incarnation: str) -> str:
    """A disk as people are shown it: it tells two disks apart, and a hello cannot be forged with it."""
    return hashlib.sha256(incarnation.encode()).hexdigest()[:FINGERPRINT_CHARS]


class FollowerStatus(msgspec.Struct, frozen=True):
    """The leader's view of one follower."""

    node: int
    state: str  # probe | replicate | snapshot
    match: int
    lag: int | None  # entries' records behind the leader's last index; None: not known, for the leader refuses it
    lag_seconds: float | None  # age of the oldest record it lacks; None as above
    last_contact_ms: int  # since its last answer; -1: never
    snapshot_index: int = 0  # of the snapshot on its way there; 0: none is
    snapshot_bytes: int = 0  # of it that are written there
    snapshot_total: int = 0
    refused: str = ""  # why the leader refuses its connections; empty: it does not


class RefusingPeer(msgspec.Struct, frozen=True):
    """A member that refuses the connections of the node which says so."""

    node: int
    reason: str


class ConsumerStatus(msgspec.Struct, frozen=True):
    """One group, and how far behind it is."""

    name: str
    position: Position
    generation: int
    owner: str
    lag: int  # records from the position to the newest user record, internal ones among them; 0: there is none to read
    lag_seconds: float | None  # age of the oldest user record that it has not read; None: it could not be looked up
    updated_ms: int  # time of the entry that changed it last


class DigestStatus(msgspec.Struct, frozen=True):
    """What digest points say of this node's state."""

    points: int = 0  # applied since the start
    newest: int = 0  # index of the newest of them; 0: none
    agreed: int = 0  # of the newest at which this state was a majority's; 0: none since the start
    age_ms: int = -1  # since that was found; -1: never
    differ: int = 0  # of the newest at which no majority has one state: nothing is written; 0: there is none


class ScrubStatus(msgspec.Struct, frozen=True):
    """How far this node has read its own files, and what is wrong with them."""

    rounds: int = 0  # through all of them, finished since the start
    bytes: int = 0  # read since the start
    file: str = ""  # that is being read; empty: none is, until the next round
    age_ms: int = -1  # since the newest round was finished; -1: none was
    damage: str = ""  # what is damaged: it is mended by a start, which waits until the other nodes are well


class BackfillStatus(msgspec.Struct, frozen=True):
    """How far a node that was built from a snapshot has fetched the log before it from the others."""

    missing: int = 0  # records that may be read and that only others have; 0: it has all
    segments: int = 0  # fetched since the start
    bytes: int = 0  # written for them
    waits: str = ""  # why it does not go on just now; empty: it does, or has all


class Status(msgspec.Struct, frozen=True):
    """`GET /v1/status`: one node's view."""

    log: str
    node: int
    disk: str  # fingerprint of its data folder's incarnation: no hello can be forged with it
    role: str  # leader | follower | candidate | pre_candidate | learner | joining | removed | healing | fenced
    term: int
    leader: LeaderHint | None
    last: int  # last index in this node's log
    persisted: int
    committed: int
    applied: int
    oldest: int
    last_user_index: int
    revision: int
    state: SetDigest
    followers: list[FollowerStatus]  # empty unless leader
    sessions: int
    uptime_ms: int
    version: str
    index: int
    voters: list[int] = []  # of the configuration in force here; while it is joint, the new majority
    outgoing: list[int] = []  # the old majority of a joint configuration; empty: it is not joint
    learners: list[int] = []
    consumers: list[ConsumerStatus] = []  # the groups that are the most records behind (limits.consumers_shown_max)
    digests: DigestStatus = DigestStatus()
    scrub: ScrubStatus = ScrubStatus()
    backfill: BackfillStatus = BackfillStatus()
    cluster_version: int = 1  # in force: what every member knew when the leader raised it
    known_version: int = 1  # the newest that this node's raftlog knows
    refused_by: list[RefusingPeer] = []  # members that refuse this node's connections
    is_cut_off: bool = False  # they are the leader, or leave no majority: nothing that this node says counts


class MemberAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """One member of the cluster."""

    node: int
    disk: str  # fingerprint of the incarnation of its data folder
    peer: str
    url: str
    role: str  # voter | learner | leaving (a voter of the old majority alone)
    catching_up: bool = False  # becomes a voter when it has caught up; known at the leader alone, as what follows
    match: int | None = None  # the last index that it is proved to have
    lag: int | None = None
    given_up: str | None = None  # why what was still to be done with it is not done
    known_version: int | None = None  # the newest cluster version that it knows; absent: it is not connected here


class Members(msgspec.Struct, frozen=True):
    """`GET /v1/members`."""

    log: str
    members: list[MemberAnswer]
    leader: LeaderHint | None
    index: int
    term: int
    configuration: int = 0  # index of the configuration in force
    is_changing: bool = False  # a change is under way, as far as this node knows
    is_joint: bool = False


# ---------------------------------------------------------------------------------------------------------------
# Who may.


class Principal(msgspec.Struct, frozen=True):
    """Who asks. Number 0 is everyone: the only one until tokens exist."""

    number: int = 0
    name: str = "anyone"


def authorise(principal: Principal, verb: str, namespace: int, key: bytes | None) -> None:
    """The one step that every route and the peer hello pass; today it allows. Raises ApiError forbidden."""
