"""Decides who may do what: the one step that every route and every peer hello pass."""

from __future__ import annotations

import msgspec


class Principal(msgspec.Struct, frozen=True):
    """Who asks. Number 0 is everyone: the only one until tokens exist."""

    number: int = 0
    name: str = "anyone"


def authorise(principal: Principal, verb: str, namespace: int, key: bytes | None) -> None:
    """The one step that every route and the peer hello pass; today it allows. Raises ApiError forbidden."""
