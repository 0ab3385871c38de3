"""Defines the errors of the clients: one class per outcome, and below it one per cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from raftlog.cluster.api.errors import ApiError, Code, Outcome, Problem


class ClientError(ApiError):
    """A request failed. `outcome` covers all its attempts; `code` is the last attempt's."""

    outcome: Outcome = Outcome.NOT_APPLIED

    def __init__(self, code: Code, message: str, *, problem: Problem | None = None, tried: Sequence[str] = ()) -> None:
        super().__init__(code, message)
        self.problem = problem
        self.tried = tuple(tried)


class NotApplied(ClientError):
    """Nothing changed, and never will through this request."""


class OutcomeUnknown(ClientError):
    """It may have happened, or may yet. `session` and `sequence` (if it had them) name its receipt."""

    outcome = Outcome.UNKNOWN
    session: int | None = None
    sequence: int | None = None


class Unavailable(NotApplied):
    """No node accepted it within the deadline: unreachable, no leader, overloaded. `is_reached`: without an answer, but
    some program accepted a connection."""

    is_reached = False


class ConnectionsBusy(Unavailable):
    """The request was not sent: other requests of this client used all of its connections."""


class Unauthorized(NotApplied):
    """The node knows no user by this client's certificate or token: there is none, or it is revoked or expired."""


class Forbidden(NotApplied):
    """The user may not do this; `missing` is the grant that it lacks, if the node names one."""

    @property
    def missing(self) -> str:
        """As in `write on keys:orders/1`; empty if the node names none."""
        return (self.problem.missing if self.problem is not None else None) or ""


class KeyNotFound(NotApplied):
    """There is no such key."""


class CompareFailed(NotApplied):
    """An expected revision did not match; `problem.revision` is the key's current one."""


class Compacted(NotApplied):
    """The index or revision is not kept any more. `problem.oldest` or `problem.index` names the oldest kept one."""


class SessionExpired(OutcomeUnknown):
    """The session is not known (any more): an earlier copy of the request may have been applied under it."""


class SequenceSettled(OutcomeUnknown):
    """The sequence is below the session's settled mark: its result is not kept any more."""


class ConsumerNotFound(NotApplied):
    """There is no such consumer group (any more)."""


class ConsumerFenced(NotApplied):
    """Another owner claimed the consumer group; `problem.generation` and `problem.position` are the group's now."""


_UNKNOWN: Final[dict[Code, type[OutcomeUnknown]]] = {
    Code.SESSION_EXPIRED: SessionExpired,
    Code.SEQUENCE_SETTLED: SequenceSettled,
}
_CLASSES: Final[dict[Code, type[NotApplied]]] = {
    Code.UNAUTHORIZED: Unauthorized,
    Code.FORBIDDEN: Forbidden,
    Code.PERMISSION_LOST: Forbidden,
    Code.KEY_NOT_FOUND: KeyNotFound,
    Code.COMPARE_FAILED: CompareFailed,
    Code.COMPACTED: Compacted,
    Code.CONSUMER_NOT_FOUND: ConsumerNotFound,
    Code.CONSUMER_FENCED: ConsumerFenced,
    Code.NO_LEADER: Unavailable,
    Code.BUSY: Unavailable,
    Code.OVER_QUOTA: Unavailable,
    Code.DISK_FULL: Unavailable,
    Code.DEADLINE: Unavailable,
    Code.SHUTTING_DOWN: Unavailable,
    Code.FENCED: Unavailable,
    Code.STATES_DIFFER: Unavailable,
    Code.OVERWRITTEN: Unavailable,
    Code.WINDOW_FULL: Unavailable,
    Code.SESSIONS_FULL: Unavailable,
}


def problem_error(problem: Problem, message: str | None = None, tried: Sequence[str] = ()) -> ClientError:
    """The error for a problem that settles its request."""
    if problem.code in _UNKNOWN:
        return unknown_error(problem.code, message or problem.message, problem=problem, tried=tried)
    kind = _CLASSES.get(problem.code, NotApplied)
    return kind(problem.code, message or problem.message, problem=problem, tried=tried)


def unknown_error(
    code: Code, message: str, *, problem: Problem | None = None, tried: Sequence[str] = ()
) -> OutcomeUnknown:
    """The error for a request that may have been applied."""
    return _UNKNOWN.get(code, OutcomeUnknown)(code, message, problem=problem, tried=tried)


def window_full(session: int, window_max: int) -> Unavailable:
    """The error of a write that found no free sequence within its deadline."""
    why = f"{window_max} writes of session {session} wait for their answers: wait for some, or use two clients"
    return Unavailable(Code.WINDOW_FULL, why)


def connections_busy(connections_max: int, waited_s: float, *, is_deadline: bool) -> ConnectionsBusy:
    """The error of a request that got no connection of its client within its time.

    `is_deadline`: the caller gave that time; otherwise no node answered any request of the client for so long.
    """
    why = "that the request was given" if is_deadline else "in which no node answered any of them"
    return ConnectionsBusy(
        Code.BUSY,
        f"other requests used all {connections_max} connections of this client for the {waited_s:g} s {why}: "
        "send fewer at a time, or give the client more connections (connections_max)",
    )
