"""Provides a served fake node with users and tokens, for tests of access control."""

from __future__ import annotations

import json
from typing import Any

from raftlog.cluster.security.tokens import NewToken, make_token
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.codec.configuration import encode_configuration
from raftlog.raft.configuration import Configuration
from raftlog.raft.types import EntryKind
from raftlog.statemachine.access.admission import encode_admission
from raftlog.statemachine.access.commands import AccessAction, AccessCommand, encode_access
from raftlog.statemachine.access.grants import parse_grant
from raftlog.statemachine.commands import Operation, Result
from raftlog.statemachine.versions import CLUSTER_VERSION
from tests.cluster.fake_node import LOG_ID, FakeNode
from tests.cluster.http.fast.fast_wire import Server, Wire, request
from tests.cluster.http.http_probe import Reply

ADMIN = "root"


class AccessWorld(Server):
    """A node with access control on, and the admin `root`. Requests of users carry their tokens."""

    def __init__(self, *, fast_path: bool = True, is_set_up: bool = True, **limits: int) -> None:
        super().__init__(fast_path=fast_path, **limits)
        self.tokens: dict[str, NewToken] = {}
        raise_version(self.node)
        if is_set_up:
            token = self.tokens[ADMIN] = make_token()
            self.change(
                AccessAction.INIT, name=ADMIN, token=token.identifier, token_hash=token.digest, label="the first"
            )

    def change(self, action: AccessAction, **fields: object) -> None:
        """Applies one change of permissions, as the admin's."""
        change_access(self.node, AccessCommand(int(action), **fields))  # type: ignore[arg-type]

    def user(self, name: str, *grants: str, roles: tuple[str, ...] = ()) -> NewToken:
        """Makes a user with these grants and roles, and a token of it."""
        if grants:
            self.role(f"of-{name}", *grants)
            roles += (f"of-{name}",)
        self.change(AccessAction.SET_USER, name=name, roles=roles)
        return self.token(name)

    def role(self, name: str, *grants: str) -> None:
        """Makes or changes a role."""
        self.change(AccessAction.SET_ROLE, name=name, grants=tuple(map(parse_grant, grants)))

    def token(self, user: str, expires_ms: int = 0) -> NewToken:
        """A further token of a user, which its requests carry from now on."""
        token = self.tokens[user] = make_token()
        self.change(
            AccessAction.ADD_TOKEN, name=user, token=token.identifier, token_hash=token.digest, expires_ms=expires_ms
        )
        return token

    async def ask(self, user: str | None, method: str, target: str, *headers: str, body: bytes | None = None) -> Reply:
        """The answer to one request of that user; None: without a token."""
        wire = self.connect()
        return await self.on(wire, user, method, target, *headers, body=body)

    async def on(
        self, wire: Wire, user: str | None, method: str, target: str, *headers: str, body: bytes | None = None
    ) -> Reply:
        """The same on a connection that is there."""
        before = len(wire.written)
        await wire.feed(request(method, target, *self.sign(user), *headers, body=body))
        written, wire.written = wire.written, wire.written[before:]
        try:
            return wire.replies(*([0] if method == "HEAD" else []))[0]
        finally:
            wire.written = written

    def sign(self, user: str | None) -> tuple[str, ...]:
        """The header of that user's requests."""
        return () if user is None else (f"Authorization: Bearer {self.tokens[user].text}",)


def txn(*steps: dict[str, Any], compare: list[dict[str, Any]] | None = None) -> bytes:
    """The body of a transaction."""
    return json.dumps({"compare": compare or [], "then": list(steps), "else": []}).encode()


_QUERIES = {
    ("PUT", "/v1/kv"): "?key_b64=YQ==",
    ("DELETE", "/v1/kv"): "?prefix=a",
    ("GET", "/v1/watch"): "?key=a",
    ("GET", "/v1/access/can"): "?grant=read+on+log",
}
_BODIES = {
    ("PUT", "/v1/kv/{key}"): b"v",
    ("PUT", "/v1/kv"): b"v",
    ("POST", "/v1/log"): b"v",
    ("POST", "/v1/log/trim"): b'{"before":1}',
    ("POST", "/v1/kv/txn"): txn({"operation": "put", "key": "a", "value": "v"}),
    ("POST", "/v1/kv/batch"): b'{"writes":[{"key":"a","value":"v"}]}',
    ("POST", "/v1/kv/compact"): b'{"revision":1}',
    ("PUT", "/v1/consumers/{consumer}"): b'{"reset":true,"position":{"log":"%b","next":{"0":1}}}' % LOG_ID.encode(),
    ("POST", "/v1/members"): b'{"change":"remove","node":2}',
    ("POST", "/v1/access"): b'{"action":"set_user","name":"x"}',
}


def valid(method: str, pattern: str, session: int = 9) -> tuple[str, bytes | None]:
    """The target and the body of a valid request to that route."""
    target = pattern.format(key="a", session=session, sequence=1, consumer="g", index=1, file="app.js")
    return target + _QUERIES.get((method, pattern), ""), _BODIES.get((method, pattern))


def raise_version(node: FakeNode) -> None:
    """The cluster version in force becomes the newest."""
    newest = Configuration(node.configuration.members, (1,), version=CLUSTER_VERSION)
    node.append(EntryKind.CONFIGURATION, encode_configuration(newest), 1)


def change_access(node: FakeNode, command: AccessCommand) -> None:
    """Applies one change of permissions, as the admin's once there is one."""
    table = node.machine.access
    admission = encode_admission(table.admission(ADMIN)) if table.is_on else b""
    record = BlockRecord(int(Operation.ACCESS), None, encode_access(command))
    [settled] = node.submit_now((encode_block((record,), admission=admission), 1))
    assert settled.effect.result is Result.APPLIED, settled.effect
