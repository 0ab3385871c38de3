"""Makes the answer to a client from an error.

The HTTP layer and the simulator call it.
"""

from __future__ import annotations

from raftlog.cluster.api.errors import ApiError, Problem, outcome_of
from raftlog.cluster.api.values import LeaderHint


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
    """The error as its client gets it. `index` and `term` are the node's unless the error has its own;
    `has_session`: the request is a write that names a session."""
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
