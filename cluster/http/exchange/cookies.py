"""Reads and writes the cookie of a login, which browsers send by themselves.

Cookies ignore ports, so the name has the log and the node: nodes of one host do not take each other's. A cookie counts
only in a request of this node's own pages. Programs never get one.
"""

from __future__ import annotations

from typing import Final

from raftlog.cluster.admission.access import Credential
from raftlog.cluster.admission.logins import LIFE_S
from raftlog.cluster.http.exchange.call import Call
from raftlog.cluster.http.exchange.service import Service

_LOG_CHARS: Final = 12


def secret_of(service: Service, call: Call, host: str) -> str | None:
    """The secret in the request's cookie; None without one, and in a request of another site's page."""
    text = call.headers.get("Cookie")
    if not text or not _is_own(call, host):
        return None
    name = _name(service)
    found = (part.strip().partition("=") for part in text.split(";"))
    return next((value for key, _, value in found if key == name), None)


def credential_of(service: Service, call: Call, host: str) -> Credential | None:
    """The credential of the login that the request's cookie names; None if there is none, or it has ended."""
    secret = secret_of(service, call, host)
    token = None if secret is None else service.access.logins.token(secret, service.clock())
    return None if token is None else Credential(token)


def cookie(service: Service, secret: str) -> tuple[str, str]:
    """The header that gives a browser the secret, or with an empty one takes it away."""
    secure = "" if service.credentials is None else "; Secure"
    life_s = int(LIFE_S) if secret else 0
    return "Set-Cookie", f"{_name(service)}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={life_s}{secure}"


def _name(service: Service) -> str:
    return f"raftlog-{service.identity.log_id[:_LOG_CHARS]}-{service.identity.node_id}"


def _is_own(call: Call, host: str) -> bool:
    """Whether a page of this very origin sent it, as the browser says: a page can change neither header."""
    origin = call.headers.get("Origin")
    if origin is not None:
        return origin.partition("://")[2].lower() == host.lower()
    return call.headers.get("Sec-Fetch-Site") == "same-origin"
