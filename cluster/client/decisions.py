"""Decides the client's next step after an answer or a failure: without input, output, clock or chance.

The clients (`raftlog.cluster.client.aio.client`, `raftlog.cluster.client.blocking.client`) and the simulator carry out
each `Step` and return its result. Times are monotonic milliseconds that the caller passes in, and so is the source of
chance.

- **Three outcomes.** A request remembers whether any of its attempts may have been carried out (`ClientCall.maybe`).
  From then on only an answer of the state machine about this session and sequence settles it; every other end is
  `unknown`. A write without a session is never sent again once it may have happened.
- **No redirect loops** (pitfall 83: redirect loops, thesis section 6.2). Within one round a URL is tried at most once
  and at most `HINTS_MAX` hints are followed. Then time passes before the next round. A hint from an older term than one
  already believed is ignored, and a URL learned from a hint is forgotten when it fails.
- **Sessions** (docs/promises.md). `SessionBook` hands out sequences and keeps the lowest unanswered one. A sequence
  with unknown outcome stays open, so that the client can ask for its receipt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import Final

from raftlog.cluster.api.errors import DECIDED, ERRORS, Code, Outcome, Problem
from raftlog.cluster.api.members import Members
from raftlog.cluster.api.values import LeaderHint
from raftlog.cluster.client.arguments import checked_methods, require
from raftlog.cluster.client.errors import ClientError, Unavailable, problem_error, unknown_error

Random = Callable[[int, int], int]
"""Draws an integer between two inclusive bounds."""

HINTS_MAX: Final = 3
"""Leader hints followed within one round; an election moves the leader once, seldom twice."""

URLS_LEARNED_MAX: Final = 64
"""URLs taken from hints and member lists; more than any cluster has."""

WINDOW_MAX: Final = 1_024
"""Sequences a session may have open at once (`raftlog.statemachine.commands.SESSION_WINDOW_MAX`)."""


class Safety(Enum):
    """The effect of sending a request twice."""

    FREE = "free"  # reads, and requests whose effect no caller asks about: opening a session, keepalive
    AGAIN = "again"  # changes something, and a repetition changes nothing more: trim, void, closing a session
    ONCE = "once"  # a write with session and sequence: the state machine applies it once
    PLAIN = "plain"  # a write without a session: not sent again once it may have happened


class Failure(StrEnum):
    """How an attempt ended without a proper answer."""

    NOT_SENT = "not_sent"  # no connection: the node has not seen it
    NO_HANDSHAKE = "no_handshake"  # a connection, and no TLS on it: the node has not seen it either
    BROKEN = "broken"  # the connection ended before the answer
    TIMED_OUT = "timed_out"  # no answer within the attempt's time
    GARBLED = "garbled"  # an answer that is not raftlog's

    @property
    def is_unseen(self) -> bool:
        """Whether no node has seen the request."""
        return self in (Failure.NOT_SENT, Failure.NO_HANDSHAKE)


@checked_methods
@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The limits of a client's patience."""

    back_off_first_ms: int = 20  # a killed leader is replaced within about 100 ms (closed link)
    back_off_max_ms: int = 1_000
    attempt_ms: int = 1_000  # first attempt at a node; doubled each round, so that a slow cluster is not flooded
    grace_ms: int = 250  # added to the node's deadline, so that its own answer arrives
    penalty_ms: int = 2_000  # a node that failed is tried last for this long
    unreachable_ms: int | None = None  # give up before the deadline if by then no connection could be made at all


@dataclass(slots=True)
class Routes:
    """The URLs of the nodes, as far as one client knows them; shared by all its requests.

    `configured` are the URLs that the user gave. A `bound` client uses only these. `dial` maps node ids to URLs that
    replace any URL of a hint (proxies stay in the path).
    """

    configured: tuple[str, ...]
    bound: bool = False
    dial: Mapping[int, str] = field(default_factory=dict)
    learned: list[str] = field(default_factory=list)
    leader: str | None = None
    leader_term: int = 0
    preferred: str | None = None  # the URL that answered last
    penalised: dict[str, int] = field(default_factory=dict)  # URL -> until when

    def __post_init__(self) -> None:
        self.configured = tuple(dict.fromkeys(normal_url(url) for url in self.configured))
        if not self.configured:
            raise ValueError("a client needs the URL of at least one node, such as http://127.0.0.1:7001")

    @property
    def urls(self) -> list[str]:
        """Every URL known, the configured ones first."""
        return [*self.configured, *self.learned]


def normal_url(url: str) -> str:
    """`127.0.0.1:7001` or `http://127.0.0.1:7001/` as `http://127.0.0.1:7001`; https stays. Raises ValueError with the
    fix."""
    require(url, "the URL of a node", (str,), "str")
    text = url.strip().rstrip("/")
    if "://" not in text:
        text = f"http://{text}"
    scheme, _, rest = text.partition("://")
    host, colon, port = rest.rpartition(":")
    if (
        scheme not in ("http", "https")
        or not host
        or not colon
        or not port.isascii()
        or not port.isdigit()
        or "/" in rest
    ):
        raise ValueError(f"{url!r} is not the URL of a node; write it as http://HOST:PORT or https://HOST:PORT")
    if not 0 < int(port) < 65_536:
        raise ValueError(f"{url!r} names port {port}; ports go from 1 to 65535")
    return f"{scheme}://{host}:{int(port)}"


def learn_url(routes: Routes, node: int, url: str) -> str | None:
    """Remembers a node's URL. Returns the URL to dial for it, or None if it may not be used."""
    if node in routes.dial:
        url = routes.dial[node]
    if routes.bound:
        return None
    try:
        url = normal_url(url)
    except ValueError:
        return None  # an invalid advertised URL must not fail the request
    if url not in routes.configured and url not in routes.learned:
        if len(routes.learned) >= URLS_LEARNED_MAX:
            return None
        routes.learned.append(url)
    return url


def learn_leader(routes: Routes, hint: LeaderHint | None, term: int | None) -> str | None:
    """Believes a leader hint unless it is of an older term; returns the URL to dial, or None."""
    if hint is None or (term is not None and term < routes.leader_term):
        return None
    url = learn_url(routes, hint.node, hint.url)
    if url is not None:
        routes.leader = url
        routes.leader_term = max(routes.leader_term, term or 0)
    return url


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCall:
    """One request under way."""

    safety: Safety
    started_ms: int
    deadline_ms: int
    url: str = ""  # URL of the attempt under way
    round: int = 0  # rounds that ended without an answer
    visited: tuple[str, ...] = ()  # in this round
    hints: int = 0  # followed in this round
    attempts: int = 0
    maybe: bool = False  # an attempt may have been carried out, or may yet be
    connected: bool = False  # some node was reached
    accepted: bool = False  # some program accepted a connection, whatever came of it
    failures: tuple[tuple[str, str], ...] = ()  # newest reason per URL
    last: Problem | None = None  # the newest attempt's problem; None without an answer


@dataclass(frozen=True, slots=True)
class Attempt:
    """Wait, then send the request to `url` with the deadline `node_ms`, and wait `timeout_ms` for the answer."""

    url: str
    wait_ms: int
    node_ms: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The request ends with this error, which has its outcome."""

    error: ClientError


Step = Attempt | GiveUp


# Answers of the state machine about this session and sequence settle a request, whatever earlier attempts did. Two
# codes do not: `sequence_reused`, because a node of another version may encode the same request in other bytes; and
# `future_index`, which a node that is behind also answers to reads.
_SETTLES: Final = DECIDED - {Code.SEQUENCE_REUSED, Code.FUTURE_INDEX}
# The node itself has no space, and every other node would forward the request to the same leader.
_CROWDED: Final = frozenset({Code.BUSY, Code.OVER_QUOTA, Code.WINDOW_FULL, Code.SESSIONS_FULL})


# ---------------------------------------------------------------------------------------------------------------
# Decisions.


def begin(
    routes: Routes,
    policy: Policy,
    safety: Safety,
    *,
    now_ms: int,
    deadline_ms: int,
    random: Random,
    maybe: bool = False,
) -> tuple[ClientCall, Step]:
    """A request and its first step. `maybe`: it may have been sent before, under the same session and sequence."""
    call = ClientCall(safety=safety, started_ms=now_ms, deadline_ms=deadline_ms, maybe=maybe)
    return _next_url(routes, policy, call, now_ms, random)


def answered(routes: Routes, call: ClientCall, *, leader: LeaderHint | None = None, term: int | None = None) -> None:
    """The attempt's node answered with success (`leader` only where the answer names one)."""
    routes.preferred = call.url
    routes.penalised.pop(call.url, None)
    learn_leader(routes, leader, term)


def refused(
    routes: Routes, policy: Policy, call: ClientCall, problem: Problem, *, now_ms: int, random: Random
) -> tuple[ClientCall, Step]:
    """The attempt's node answered with a problem."""
    call = replace(call, connected=True, last=problem, failures=_noted(call, f"{problem.code}: {problem.message}"))
    # What the node says of earlier copies is known here. For this copy its code suffices.
    if call.safety is not Safety.FREE and ERRORS[problem.code].outcome is Outcome.UNKNOWN:
        call = replace(call, maybe=True)
    hint = learn_leader(routes, problem.leader, problem.term)
    if hint is None and routes.leader == call.url and problem.code in (Code.NO_LEADER, Code.LEADER_LOST, Code.FENCED):
        routes.leader = None
    if call.safety is Safety.ONCE and problem.code in _SETTLES:
        return call, GiveUp(_error(call, maybe=False))
    if not problem.retryable or (call.safety is Safety.PLAIN and call.maybe):
        return call, GiveUp(_error(call, maybe=call.maybe))
    if problem.code in _CROWDED:
        return _back_off(routes, policy, call, now_ms, random, url=call.url)
    if hint is not None and call.hints >= HINTS_MAX:
        return _back_off(routes, policy, call, now_ms, random)
    if hint is not None and hint not in call.visited:
        return _attempt(policy, replace(call, hints=call.hints + 1), hint, 0, now_ms)
    if problem.code in (Code.FENCED, Code.SHUTTING_DOWN, Code.DISK_FULL):
        routes.penalised[call.url] = now_ms + policy.penalty_ms
    return _next_url(routes, policy, call, now_ms, random)


def failed(
    routes: Routes, policy: Policy, call: ClientCall, failure: Failure, reason: str, *, now_ms: int, random: Random
) -> tuple[ClientCall, Step]:
    """The attempt ended without an answer. `reason` is for people."""
    call = replace(call, last=None, failures=_noted(call, reason))
    if failure is not Failure.NOT_SENT:
        call = replace(call, accepted=True)
    if not failure.is_unseen:
        call = replace(call, connected=True, maybe=call.maybe or call.safety is not Safety.FREE)
    penalise(routes, policy, call.url, now_ms)
    if failure.is_unseen and call.url in routes.learned:
        routes.learned.remove(call.url)  # a removed member; a hint may bring it back
        del routes.penalised[call.url]
    if call.safety is Safety.PLAIN and call.maybe:
        return call, GiveUp(_error(call, maybe=True))
    return _next_url(routes, policy, call, now_ms, random)


def penalise(routes: Routes, policy: Policy, url: str, now_ms: int) -> None:
    """A node broke off a stream or failed otherwise: tries others first for a while."""
    routes.penalised[url] = now_ms + policy.penalty_ms
    if routes.leader == url:
        routes.leader = None
    if routes.preferred == url:
        routes.preferred = None


def learn_members(routes: Routes, members: Members) -> None:
    """Remembers the URLs of the members, and the leader."""
    for member in members.members:
        learn_url(routes, member.node, member.url)
    learn_leader(routes, members.leader, members.term)


def pause_ms(policy: Policy, round: int, random: Random) -> int:
    """How long to wait after that many consecutive failed rounds (or broken streams)."""
    ceiling = min(policy.back_off_max_ms, policy.back_off_first_ms << min(round, 20))
    return random(ceiling - ceiling // 2, ceiling)


def _next_url(routes: Routes, policy: Policy, call: ClientCall, now_ms: int, random: Random) -> tuple[ClientCall, Step]:
    """Tries the best URL not yet tried in this round at once; else the best of all after a while."""
    left = [url for url in routes.urls if url not in call.visited]
    if not left:
        return _back_off(routes, policy, call, now_ms, random)
    return _attempt(policy, call, _best(routes, left, now_ms, random), 0, now_ms)


def _best(routes: Routes, urls: Sequence[str], now_ms: int, random: Random) -> str:
    healthy = [url for url in urls if routes.penalised.get(url, now_ms) <= now_ms] or urls
    for url in (routes.leader, routes.preferred):
        if url is not None and url in healthy:
            return url
    return healthy[random(0, len(healthy) - 1)]


def _back_off(
    routes: Routes, policy: Policy, call: ClientCall, now_ms: int, random: Random, url: str | None = None
) -> tuple[ClientCall, Step]:
    """A new round after a random wait between half of the back-off and all of it."""
    wait_ms = pause_ms(policy, call.round, random)
    call = replace(call, round=call.round + 1, visited=(), hints=0)
    if url is None:
        url = _best(routes, routes.urls, now_ms, random)
    return _attempt(policy, call, url, wait_ms, now_ms)


def _attempt(policy: Policy, call: ClientCall, url: str, wait_ms: int, now_ms: int) -> tuple[ClientCall, Step]:
    left_ms = call.deadline_ms - now_ms - wait_ms
    if policy.unreachable_ms is not None and not call.connected and wait_ms:
        left_ms = min(left_ms, call.started_ms + policy.unreachable_ms - now_ms - wait_ms)
    if left_ms <= 0:
        return call, GiveUp(_error(call, maybe=call.maybe))
    # A plain write has only one try once it was sent; other requests go on elsewhere if a node does not answer.
    node_ms = left_ms
    if call.safety is not Safety.PLAIN:
        node_ms = min(left_ms, policy.attempt_ms << min(call.round, 16))
    call = replace(call, url=url, visited=(*call.visited, url), attempts=call.attempts + 1)
    return call, Attempt(url, wait_ms, node_ms, node_ms + policy.grace_ms)


def _noted(call: ClientCall, reason: str) -> tuple[tuple[str, str], ...]:
    return (*(pair for pair in call.failures if pair[0] != call.url), (call.url, reason))


def _error(call: ClientCall, *, maybe: bool) -> ClientError:
    tried = [url for url, _ in call.failures]
    reasons = "; ".join(f"{url}: {reason}" for url, reason in call.failures) or "there was no time to try any node"
    problem = call.last
    if maybe:
        is_why = problem is not None and (not problem.retryable or ERRORS[problem.code].outcome is Outcome.UNKNOWN)
        code = problem.code if problem is not None and is_why else Code.TIMEOUT
        return unknown_error(code, f"it may or may not have been applied. {reasons}", problem=problem, tried=tried)
    if problem is not None:
        return problem_error(problem, reasons if problem.retryable else problem.message, tried)
    error = Unavailable(Code.NO_LEADER, f"no node answered. {reasons}", tried=tried)
    error.is_reached = call.accepted
    return error


# ---------------------------------------------------------------------------------------------------------------
# Sessions.


@dataclass(slots=True)
class SessionBook:
    """The sequences of one session: the open ones, the answered ones, and the lowest unanswered one (`settled`)."""

    session: int
    next: int = 1
    settled: int = 1
    window_max: int = WINDOW_MAX
    answered_above: set[int] = field(default_factory=set)
    given_up: set[int] = field(default_factory=set)

    @property
    def has_room(self) -> bool:
        """Whether another sequence may be taken."""
        return self.next - self.settled < self.window_max

    @property
    def is_stuck(self) -> bool:
        """No free sequence, and the lowest open one has been given up: time for a new session."""
        return not self.has_room and self.settled in self.given_up

    @property
    def is_idle(self) -> bool:
        """Whether no call waits for any of its sequences."""
        return self.next - self.settled == len(self.answered_above) + len(self.given_up)

    @property
    def is_settled(self) -> bool:
        """Whether every sequence is answered, so that no caller has a receipt to ask for."""
        return self.settled == self.next

    def take(self) -> int:
        """The next sequence, which is open from now on."""
        if not self.has_room:
            raise ValueError(f"{self.window_max} sequences of session {self.session} are open")
        sequence = self.next
        self.next += 1
        return sequence

    def answer(self, sequence: int) -> None:
        """The sequence is settled: applied, or certain never to be."""
        self.given_up.discard(sequence)
        if sequence >= self.settled:
            self.answered_above.add(sequence)
        while self.settled in self.answered_above:
            self.answered_above.remove(self.settled)
            self.settled += 1

    def give_up(self, sequence: int) -> None:
        """No call waits for the sequence any more, and its outcome is unknown: it stays open."""
        self.given_up.add(sequence)
