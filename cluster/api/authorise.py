"""Decides whether a client or a peer may do what it asks for; every route and every peer hello pass this step."""

from __future__ import annotations

import msgspec


class Principal(msgspec.Struct, frozen=True):
    """The client or peer that sends a request. Number 0 stands for every client, because tokens do not exist yet."""

    number: int = 0
    name: str = "anyone"


def authorise(principal: Principal, verb: str, namespace: int, key: bytes | None) -> None:
    """Called by every route and by the peer hello. Today it allows every request. Raises ApiError forbidden."""
