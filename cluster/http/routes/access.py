"""Handles `/v1/access`: shows and changes users, roles and tokens, and explains decisions."""

from __future__ import annotations

from typing import Final

import msgspec

from raftlog.cluster.api.access import (
    AccessAnswer,
    AccessChanged,
    AccessIn,
    CanAnswer,
    OwnAccess,
    RoleView,
    TokenView,
    UserView,
)
from raftlog.cluster.api.errors import ApiError, Code, Outcome
from raftlog.cluster.http.exchange.answer import HttpAnswer
from raftlog.cluster.http.exchange.body import decode, read_body
from raftlog.cluster.http.exchange.call import READ_PARAMETERS, Call, read_index
from raftlog.cluster.http.exchange.outcomes import submit
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.security.names import HolderKind
from raftlog.cluster.security.tokens import PREFIX, redacted
from raftlog.raft.codec.block import BlockRecord
from raftlog.statemachine.access import needs
from raftlog.statemachine.access.admission import decode_admission, encode_admission
from raftlog.statemachine.access.commands import AccessAction, AccessCommand, Condition, encode_access
from raftlog.statemachine.access.grants import BUILT_IN, parse_grant
from raftlog.statemachine.access.permissions import Permissions
from raftlog.statemachine.commands import Operation

_BODY: Final = msgspec.json.Decoder(AccessIn)
_CAN: Final = READ_PARAMETERS | {"user", "grant"}
_CONDITIONS: Final = {"none": Condition.NONE, "new": Condition.IS_NEW, "exists": Condition.EXISTS}


async def get_access(service: Service, call: Call) -> HttpAnswer:
    """All users, roles and tokens, without any secret."""
    await read_index(service, call, call.query(READ_PARAMETERS))
    service.access.check(call, needs.ACCESS)
    node, table = service.node, service.access.table
    roles = [RoleView(name, [*map(str, grants)], True) for name, grants in BUILT_IN.items()]
    roles += [RoleView(name, [*map(str, grants)], False) for name, grants in sorted(table.roles.items())]
    answer = AccessAnswer(
        table.is_on,
        table.revision,
        [UserView(name, list(user.roles), user.is_blocked) for name, user in sorted(table.users.items())],
        roles,
        [
            TokenView(name, token.user, token.label, token.created_ms, token.expires_ms)
            for name, token in sorted(table.tokens.items())
        ],
        node.applied,
        node.term,
    )
    return service.answer(answer)


async def change_access(service: Service, call: Call) -> HttpAnswer:
    """Changes users, roles or tokens. `init` makes the first admin, and switches access control on."""
    call.query()
    asked = decode(_BODY, await read_body(service, call), "the body as JSON")
    if asked.token.startswith(PREFIX):
        raise ApiError(
            Code.BAD_REQUEST,
            "token is a whole token: give its id alone (in rl_ID_SECRET the part ID), and revoke that token by its id, "
            "because its secret was sent",
        )
    call.action = redacted(f"{asked.action} {asked.name or asked.token}".strip())[:100]
    table = service.access.table
    if not table.is_on:
        _check_first(service, call)
    command = AccessCommand(
        int(AccessAction[asked.action.upper()]),
        asked.name,
        tuple(asked.roles),
        tuple(map(parse_grant, asked.grants)),
        asked.blocked,
        int(_CONDITIONS[asked.condition]),
        asked.token,
        _hash(asked.token_hash),
        asked.expires_ms,
        asked.label,
    )
    done = await submit(service, call, (BlockRecord(int(Operation.ACCESS), None, encode_access(command)),))
    revision = service.access.table.revision
    return service.answer(AccessChanged(Outcome.APPLIED, done.result, revision, done.last, done.term), done.last)


def _check_first(service: Service, call: Call) -> None:
    """Access control is off, so no user is known: with TLS, only a node's own certificate may make the first admin."""
    holder = call.holder
    if service.credentials is None:
        return
    if holder is not None and holder.kind is HolderKind.NODE:
        service.access.check_member(holder)
        return
    raise ApiError(
        Code.FORBIDDEN,
        "access control is off: the first admin is made with a node's own certificate. On the machine of a node: "
        "raftlog access init NAME --config node.toml",
    )


async def get_own(service: Service, call: Call) -> HttpAnswer:
    """The sender, how it was named, what it may do, and until when."""
    await read_index(service, call, call.query(READ_PARAMETERS))
    node, access = service.node, service.access
    if access.permissions(call) is None or (caller := call.caller) is None:
        own = OwnAccess(False, "", "", [], [], 0, access.table.revision, node.applied, node.term)
    else:
        table, named = access.table, decode_admission(caller.admission)
        user = table.users.get(caller.name)
        roles = [*dict.fromkeys([*(user.roles if user is not None else ()), *named.roles])]
        grants = [*dict.fromkeys(str(grant) for role in roles for grant in table.grants_of(role))]
        by = "node" if caller.is_vouched else "certificate" if call.credential().token is None else "token"
        own = OwnAccess(
            True, caller.name, by, roles, grants, caller.expires_ms, table.revision, node.applied, node.term
        )
    return service.answer(own)


async def can(service: Service, call: Call) -> HttpAnswer:
    """Whether a user may do something, and why: the sender, or with `access on cluster` any user."""
    query = call.query(_CAN)
    grant, user = parse_grant(query.text("grant")), query.text("user")
    await read_index(service, call, query)
    node, access = service.node, service.access
    own = access.name(call)
    if user and user != own:
        access.check(call, needs.ACCESS)
    table, name = access.table, user or own
    if own == name and access.permissions(call) is not None and call.caller is not None:
        admission = call.caller.admission
    else:
        admission = encode_admission(table.admission(name or "nobody"))
    decision = table.decide(admission, grant)
    held = table.users[name].roles if name in table.users else ()
    gives = [role for role in held if Permissions(table.grants_of(role)).allows(grant)]
    answer = CanAnswer(
        name, str(grant), decision.is_allowed, str(decision.why), gives, table.revision, node.applied, node.term
    )
    return service.answer(answer)


def _hash(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise ApiError(Code.BAD_REQUEST, "token_hash is not written in hex digits") from error
