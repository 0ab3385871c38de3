"""Sends one HTTP request, to the nodes in turn until one answers: no Spark, no Arrow, blocking.

What a task on an executor needs to reach the cluster by the public routes alone;
`raftlog.cluster.client.blocking.client` is for programs that write.
"""

import http.client
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Final, TypeVar
from urllib.parse import urlencode

import msgspec

from raftlog.cluster.api.encoding import from_b64, to_b64
from raftlog.cluster.api.errors import Code, Problem
from raftlog.cluster.api.headers import H_DEADLINE, H_LOG
from raftlog.cluster.api.kv import KeyValue, RangeAnswer
from raftlog.cluster.api.records import LogPageJson, LogRecord
from raftlog.cluster.client.decisions import normal_url
from raftlog.cluster.security.bearer import Bearer, TokenError, bearer_for
from raftlog.cluster.security.tls import Credentials, TlsError, TlsFiles
from raftlog.spark_export.errors import DataLossError, ExportError, NotPermittedError, UnreachableError, UsageError

PATIENCE_S: Final = 30.0
"""How long no node may answer before it counts as unreachable: many elections and restarts."""
NODE_WAITS_MS: Final = 5_000  # longest time that a node may wait for an index it has not applied, or for a leader
_SOCKET_S: Final = 10.0  # without a byte: twice of that, so that the node's own verdict arrives
LEADER_WAIT_S: Final = 1.0
"""How long a node may look for a leader for a reader that takes an older answer instead: longer than an election."""
_PAUSE_FIRST_S: Final = 0.02
_PAUSE_MAX_S: Final = 1.0
_PAGE_KEYS: Final = 1_000  # the smallest limit of keys per page that a node may have by default

T = TypeVar("T")

log_page: Final = msgspec.json.Decoder(LogPageJson).decode
ranged: Final = msgspec.json.Decoder(RangeAnswer).decode
_problem: Final = msgspec.json.Decoder(Problem).decode


class RetryableError(Exception):
    """This node, now: try another one, or the same later. `code`: that of its answer, if it gave one."""

    code: str = ""
    is_reached: bool = True  # some program accepted the connection


def parse_endpoints(text: str) -> tuple[str, ...]:
    """`h1:p1,http://h2:p2` as URLs. Raises UsageError."""
    try:
        urls = tuple(dict.fromkeys(normal_url(part) for part in text.split(",") if part.strip()))
    except ValueError as error:
        raise UsageError(f"endpoints: {error}") from error
    if not urls:
        raise UsageError("endpoints: none is given; write them as http://HOST:PORT, several with commas between them")
    return urls


@dataclass(slots=True)
class NodeRotation:
    """Which node is next, how long to pause, and what each said last."""

    endpoints: tuple[str, ...]
    patience_s: float = PATIENCE_S
    place: int = 0
    failed: int = 0  # in a row
    since: float | None = None  # of the first failure in a row
    said: dict[str, str] | None = None
    is_reached: bool = False  # some program accepted a connection, so that a cluster is there

    @property
    def url(self) -> str:
        """The node whose turn it is."""
        return self.endpoints[self.place % len(self.endpoints)]

    def success(self) -> None:
        """Something new arrived from this node."""
        self.failed, self.since = 0, None

    def failure(self, what: str, error: Exception) -> None:
        """Takes note, and pauses once all had their turn. Raises UnreachableError when the patience is at its end."""
        now = time.monotonic()
        self.since = now if self.since is None else self.since
        self.said = (self.said or {}) | {self.url: str(error) or type(error).__name__}
        self.is_reached = self.is_reached or not isinstance(error, RetryableError) or error.is_reached
        self.failed += 1
        self.place += 1
        if now - self.since >= self.patience_s and self.failed >= len(self.endpoints):
            reasons = "; ".join(f"{url}: {reason}" for url, reason in self.said.items())
            way = "Are these the cluster's URLs (`raftlog up` prints those of a cluster on this machine)?"
            if self.is_reached:
                way = "A program accepts connections there: `raftlog status` names its state"
            raise UnreachableError(f"no node gave {what} within {self.patience_s:g} s ({reasons}). {way}") from error
        if self.failed % len(self.endpoints) == 0:
            rounds = self.failed // len(self.endpoints)
            time.sleep(min(_PAUSE_FIRST_S * 2 ** (rounds - 1), _PAUSE_MAX_S))


@contextmanager
def answering(
    url: str, path: str, query: dict[str, object], *, wait_s: float = 0, log_id: str | None = None
) -> Iterator[http.client.HTTPResponse]:
    """A GET answered with 200, its body not yet read. Raises RetryableError, DataLossError or ExportError.

    A node of another log than `log_id` refuses at once. It would wait for an index that only the right log has.
    """
    scheme, _, host = url.partition("://")
    timeout_s = max(_SOCKET_S, 2 * wait_s)
    door = http.client.HTTPConnection(host, timeout=timeout_s)
    if scheme == "https":
        door = http.client.HTTPSConnection(host, timeout=timeout_s, context=_tls_context())
    target = f"{path}?{urlencode(query)}" if query else path
    deadline_ms = NODE_WAITS_MS if not wait_s else int(wait_s * 1000)
    is_reached = False
    try:
        door.connect()
        is_reached = True
        named = {} if log_id is None else {H_LOG: log_id}
        door.request("GET", target, headers={H_DEADLINE: str(deadline_ms), **named, **_token(url)})
        answer = door.getresponse()
        served = answer.headers.get(H_LOG)
        if log_id is not None and served not in (log_id, None):
            raise DataLossError(
                f"{url} serves log {served}, expected {log_id}: the cluster was replaced, or the endpoint is another "
                f"cluster's. Indexes of one log mean nothing in another: name the endpoints of log {log_id}. A stream "
                f"of Spark begins again with startingOffsets=earliest"
            )
        if answer.status != 200:
            _raise(url, answer.status, answer.read())
        yield answer
    except (OSError, http.client.HTTPException) as error:
        retryable = RetryableError(str(error) or type(error).__name__)
        retryable.is_reached = is_reached or door.sock is not None  # there is a socket, and TLS did not come about
        raise retryable from error
    finally:
        door.close()


@cache
def _credentials() -> Credentials:
    try:
        return Credentials(TlsFiles.from_environment())
    except TlsError as error:
        raise UsageError(str(error)) from error


@cache
def _bearer() -> Bearer | None:
    try:
        return bearer_for(())
    except TokenError as error:
        raise UsageError(str(error)) from error


def _token(url: str) -> dict[str, str]:
    """The header with the token that this process's environment names. Raises UsageError."""
    bearer = _bearer()
    return {} if bearer is None else dict(bearer.header(url))


def _tls_context() -> ssl.SSLContext:
    """Made of the files that this process's environment names. Raises UsageError."""
    return _credentials().context("client")


def _raise(url: str, status: int, body: bytes) -> None:
    try:
        problem = _problem(body)
    except msgspec.MsgspecError as error:
        if status >= 500:
            raise RetryableError(f"answered {status}") from error
        raise ExportError(f"{url} answered {status} and no raftlog problem: is it a raftlog node?") from error
    if problem.status == 410:
        raise TrimmedError(problem.message, problem.oldest or problem.index)
    if problem.retryable:
        retryable = RetryableError(f"{problem.code}: {problem.message}")
        retryable.code = problem.code
        raise retryable
    kind = ForbiddenError if problem.status in (401, 403) else RefusedError
    way = ". Name a token file: export RAFTLOG_TOKEN_FILE=…" if problem.status == 401 else ""
    refused = kind(f"{url} refused: {problem.message} ({problem.code}){way}")
    refused.problem = problem
    raise refused


class RefusedError(ExportError):
    """A problem that stays the same after a retry."""

    problem: Problem


class ForbiddenError(RefusedError, NotPermittedError):
    """A grant, a certificate or a token is missing."""


class NoLeaderError(UnreachableError):
    """Of the nodes that answer none knows a leader."""


class TrimmedError(DataLossError):
    """The index asked for is below the oldest that is kept."""

    def __init__(self, message: str, oldest: int | None) -> None:
        super().__init__(message)
        self.oldest = oldest


def ask(
    rotation: NodeRotation,
    path: str,
    query: dict[str, object],
    decode: Callable[[bytes], T],
    *,
    wait_s: float = 0,
    is_leader_due: bool = True,
    log_id: str | None = None,
) -> T:
    """A JSON answer of the first node that gives one; `decode` was made at import. A caller that asks often keeps its
    `rotation`: then the node that answered last is asked first. Unless `is_leader_due`, it does not wait for a leader
    once all nodes had their turn. `log_id`: as in `answering`.

    Raises UnreachableError, DataLossError, RefusedError; NoLeaderError unless `is_leader_due`."""
    has_leader = True
    while True:
        try:
            with answering(rotation.url, path, query, wait_s=wait_s, log_id=log_id) as answer:
                decoded = decode(answer.read())
                rotation.success()
                return decoded
        except RetryableError as error:
            rotation.failure(path, error)
            has_leader = has_leader and error.code != Code.NO_LEADER
            if not (is_leader_due or has_leader) and rotation.failed >= len(rotation.endpoints):
                raise NoLeaderError(str(error)) from error
        except msgspec.MsgspecError as error:
            rotation.failure(path, RetryableError(f"answered something else than raftlog does ({error})"))


def bounds(rotation: NodeRotation, *, is_linearizable: bool = True, log_id: str | None = None) -> LogPageJson:
    """Log id, oldest index and, in `index`, a committed end of an entry: linearizable unless not asked for.

    `log_id`: as in `answering`.
    """
    stale: dict[str, object] = {} if is_linearizable else {"consistency": "stale"}
    return ask(rotation, "/v1/log", {"limit": 1, **stale}, log_page, log_id=log_id)


def bounds_now(
    endpoints: tuple[str, ...], *, patience_s: float = PATIENCE_S, is_leader_due: bool = False
) -> tuple[LogPageJson, bool]:
    """As `bounds`, and False; what one node has, and True, where there is no leader and none `is_leader_due`."""
    nodes, wait_s = NodeRotation(endpoints, patience_s), 0 if is_leader_due else LEADER_WAIT_S
    try:
        return ask(nodes, "/v1/log", {"limit": 1}, log_page, wait_s=wait_s, is_leader_due=is_leader_due), False
    except NoLeaderError:
        return bounds(NodeRotation(endpoints, patience_s), is_linearizable=False), True


def bounds_after(rotation: NodeRotation, known: int, wait_ms: int) -> LogPageJson:
    """As `bounds`, as soon as there is an index above `known`, or after `wait_ms`."""
    query: dict[str, object] = {"from": known + 1, "limit": 1, "wait": wait_ms}
    return ask(rotation, "/v1/log", query, log_page)


def keys(
    rotation: NodeRotation, prefix: bytes, more: dict[str, object], log_id: str | None = None
) -> Iterator[KeyValue]:
    """The live keys with that prefix, page by page; `more` is for the query."""
    query: dict[str, object] = {"prefix_b64": to_b64(prefix), "limit": _PAGE_KEYS, "encoding": "base64", **more}
    while True:
        page = ask(rotation, "/v1/kv", query, ranged, log_id=log_id)
        yield from page.kvs
        if not page.more:
            return
        query["continuation"] = page.continuation


def data(text: str | None) -> bytes:
    """The bytes of an answer in base64."""
    return from_b64(text or "", "a node's answer")


def record_at(rotation: NodeRotation, where: dict[str, object]) -> tuple[LogRecord | None, LogPageJson]:
    """The first record at an index (`{"from": …}`) or from a time on (`{"from_time": ms}`), internal ones included.

    None: the log has not reached it. Linearizable.
    """
    page = ask(rotation, "/v1/log", {**where, "limit": 1, "internal": "true"}, log_page)
    return (page.records[0] if page.records else None), page
