"""Defines the requests about users, roles and tokens as values, for both clients: `client.call(show())`."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from raftlog.cluster.api.access import AccessAnswer, AccessChanged, AccessIn, CanAnswer
from raftlog.cluster.api.headers import JSON
from raftlog.cluster.client import answers
from raftlog.cluster.client.flow import ApiRequest

_JSON_BODY: Final = (("Content-Type", JSON),)
_shown = answers.plain(AccessAnswer)
_decided = answers.plain(CanAnswer)
_changed = answers.plain(AccessChanged)


def show() -> ApiRequest[AccessAnswer]:
    """All users, roles and tokens, without secrets."""
    return ApiRequest("GET", "/v1/access", _shown)


def can(grant: str, user: str = "") -> ApiRequest[CanAnswer]:
    """Whether that user may do it, and why. No user: the sender."""
    query = {"grant": grant} | ({"user": user} if user else {})
    return ApiRequest("GET", f"/v1/access/can?{urlencode(query, quote_via=quote)}", _decided)


def change(asked: AccessIn) -> ApiRequest[AccessChanged]:
    """One change. It is not sent again once it may have been applied."""
    return ApiRequest("POST", "/v1/access", _changed, msgspec.json.encode(asked), _JSON_BODY, is_plain=True)
