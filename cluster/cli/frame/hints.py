"""Says what to do next after a failed request: the second line that a command prints.

`raftlog.cluster.cli.frame.common` prints it. A hint never proposes more than the request needs: no wider grant, no
second cluster beside a node that runs, no access without TLS.
"""

from __future__ import annotations

from typing import Final

from raftlog.cluster.cli.frame.discovery import SRV
from raftlog.cluster.client.errors import (
    ClientError,
    Forbidden,
    OutcomeUnknown,
    SequenceSettled,
    SessionExpired,
    Unauthorized,
    Unavailable,
)
from raftlog.statemachine.access.grants import RANGED, parse_grant
from raftlog.statemachine.store import prefix_end

SESSION_TTL_MS: Final = 60_000
"""Time to live of one command's session: it is closed at the end, and soon gone if the command is killed. After a write
of unknown outcome it stays for its receipt."""
_RECEIPT_S: Final = SESSION_TTL_MS // 2_000
"""How long a receipt stays at least after its command, in seconds. A session is kept alive every third of its time."""


def hint_of(error: ClientError, endpoints: str = "") -> str:
    """What to do next; empty if the message says it. `endpoints`: where the cluster was looked for, as the user gave
    it."""
    if isinstance(error, Unavailable) and error.problem is None:
        return _where(error, endpoints)
    if isinstance(error, Unauthorized):
        return "Name a token file: export RAFTLOG_TOKEN_FILE=…, or a client certificate (docs/security.md)."
    if isinstance(error, Forbidden) and error.missing:
        return _grant(error.missing)
    if isinstance(error, SessionExpired | SequenceSettled) and error.session:
        return (
            f"If it was applied, its records have session {error.session} and sequence {error.sequence}: "
            f"raftlog log --from {error.session} -o jsonl"
        )
    if isinstance(error, OutcomeUnknown) and error.session:
        return (
            f"To find out, within {_RECEIPT_S} s: raftlog session receipt {error.session} {error.sequence}   "
            f"(to make sure that it never applies: raftlog session void {error.session} {error.sequence})"
        )
    return ""


def _grant(missing: str) -> str:
    """How an admin gives that grant alone, and the one of its prefix."""
    grant = parse_grant(missing)
    wider = ""
    head, slash, name = grant.start.rpartition(b"/")
    if grant.resource in RANGED and slash and name:
        wider = f", or of all with this prefix: '{grant._replace(start=head + slash, end=prefix_end(head + slash))}'"
    how = "An admin gives it, to a role that the user has (raftlog user list): raftlog role grant"
    return f"{how} ROLE '{missing}'{wider}"


def _where(error: Unavailable, endpoints: str) -> str:
    """Where a cluster may be; if some program accepted the connection, it is one, and its answer counts."""
    if not error.is_reached and endpoints.startswith(SRV):
        return (
            f"The SRV records of {endpoints.removeprefix(SRV)} name no member that answers: correct them by `raftlog "
            "members list -e URL`, or start the nodes."
        )
    if not error.is_reached:
        return (
            f"No node answers at {', '.join(error.tried)}. Start a cluster with `raftlog up`, or name its nodes with "
            "--endpoints or RAFTLOG_ENDPOINTS."
        )
    seen = "A program accepts connections there; what it did instead of answering stands above. "
    if any(url.startswith("https://") for url in error.tried):
        return seen + (
            "Check RAFTLOG_CA, and RAFTLOG_CERTIFICATE with RAFTLOG_KEY where the node requires a certificate "
            "(raftlog cert check FILE). The node's log has a line `tls_refused` with its reason."
        )
    return seen + "If it is a node with TLS, write https:// instead of http://, and name its authority (RAFTLOG_CA)."
