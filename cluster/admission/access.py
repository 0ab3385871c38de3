"""Finds out which principal sends a request, and decides what it may do, by this node's applied state.

A protocol makes a `Credential` of the proof that its client shows. Its gate asks for each request while access control
is on, its handlers ask for the keys and ranges that they read or write (`raftlog.cluster.http.gate`, routes). A refusal
names the grant that is missing, and never whether a key exists. A write carries its admission, and every replica
decides again where it applies the write (`raftlog.statemachine.access`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from raftlog.cluster.admission.logins import Logins
from raftlog.cluster.admission.quota import Meter
from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.config.settings import LimitSettings
from raftlog.cluster.replica.interface import NodeInterface
from raftlog.cluster.runtime import clock
from raftlog.cluster.security.jwt_names import BadJwt
from raftlog.cluster.security.names import Holder, HolderKind
from raftlog.cluster.security.tokens import PREFIX, BadToken, is_same, token_id
from raftlog.raft.codec.block import BlockRecord
from raftlog.statemachine.access import needs
from raftlog.statemachine.access.admission import (
    EXTERNAL_PREFIX,
    NODE_ADMISSION,
    NODE_NAME,
    RESERVED_PREFIX,
    encode_admission,
)
from raftlog.statemachine.access.grants import Grant, Resource, Verb
from raftlog.statemachine.access.permissions import Permissions
from raftlog.statemachine.access.table import AccessReason, AccessTable, is_name

if TYPE_CHECKING:
    from raftlog.cluster.security.provider import Provider  # of the extra `jwt`

CALLERS_MAX: Final = 4_096
"""Most principals whose check is remembered; beyond that all are checked again."""
READ_ALL: Final = (needs.READ_LOG, Grant(Verb.READ, Resource.KEYS), Grant(Verb.READ, Resource.GROUPS))
"""What a reader of whole segments of the log needs: they hold every record."""


def reads_all(permissions: Permissions) -> bool:
    """Whether they are enough for every record."""
    return all(map(permissions.allows, READ_ALL))


class Need(Enum):
    """What the gate asks of a request before its handler, where that is no grant."""

    NOTHING = auto()  # probes of machines: it need not name a user
    PRINCIPAL = auto()  # any principal: the answer holds nothing of the state, or the handler filters it
    PARTS = auto()  # any principal: the handler asks for the keys, ranges or groups that it reads or writes


class Denial(ApiError):
    """This node's applied state does not permit the request. The state may be behind: the gate asks once more after a
    read barrier."""


@dataclass(slots=True)
class Caller:
    """One principal, as of a revision of permissions."""

    name: str
    admission: bytes  # what its writes carry
    permissions: Permissions
    revision: int
    expires_ms: int  # Unix ms; 0: never
    meter: Meter
    is_vouched: bool  # a node has named it, by its own certificate
    keys_generation: int  # of the identity provider's keys that vouch for it; 0: none do


class Credential(NamedTuple):
    """The proof of its sender that a request carries, whatever its protocol. A token counts alone."""

    token: str | None = None
    holder: Holder | None = None  # of the certificate that the client showed; None: it showed none
    user: str | None = None  # named by a node that passes a user's request on


class AdmissionRequest(Protocol):
    """The parts of a request that name its sender, such as those of `raftlog.cluster.http.exchange.call.Call`."""

    caller: Caller | None  # set here

    def credential(self) -> Credential:
        """The proof of the sender. Raises ApiError if it is malformed."""


class Access:
    """The access control of one node. Belongs to the event loop."""

    def __init__(
        self,
        node: NodeInterface,
        limits: LimitSettings,
        provider: Provider | None = None,
        *,
        is_exposed: bool = False,
        has_tls: bool = False,
        token_place: str = "",
    ) -> None:
        """`is_exposed`: the node listens beyond loopback, and serves nothing while access control is off. `has_tls`: it
        may be on in the log, and off as far as this node has applied it. `token_place`: how the protocol sends a token,
        for messages."""
        self._node = node
        self._limits = limits
        self._provider = provider
        self._token_place = token_place
        self.is_exposed = is_exposed
        self._has_tls = has_tls
        self.is_behind = has_tls  # until the node has passed a read barrier since its start
        self.logins = Logins()
        self._callers: dict[Credential, Caller] = {}
        self._meters: dict[str, Meter] = {}

    @property
    def table(self) -> AccessTable:
        """Users, roles and tokens, as far as this node has applied the log."""
        return self._node.machine.access

    # -- the gate ---------------------------------------------------------------------------------------------------

    def admit(
        self,
        call: AdmissionRequest,
        need: Need | Grant,
        size: int,
        *,
        is_read: bool,
        is_first_admin: bool,
        is_passed_on: bool,
    ) -> None:
        """Lets a request pass. `size`: of its body. `is_passed_on`: a node may send it for a user. Raises ApiError
        unauthorized, forbidden, over_quota."""
        if need is Need.NOTHING:
            return
        if not self.table.is_on:
            if self.is_exposed and not is_first_admin:
                raise Denial(
                    Code.FORBIDDEN,
                    "this node listens beyond loopback, and access control is not on: make the first admin with "
                    "raftlog access init (docs/security.md)",
                )
            if self.is_behind and not is_read:  # a read looks again after its own barrier
                raise Denial(Code.FORBIDDEN, "this node does not know yet whether access control is on")
            return
        caller = self.identify(call)
        if caller.is_vouched and not is_passed_on:
            raise ApiError(Code.FORBIDDEN, "a node may name a user only in a request that it passes on to the leader")
        caller.meter.take(size)
        if isinstance(need, Grant) and not caller.permissions.allows(need):
            raise _missing(caller.name, need)

    def identify(self, call: AdmissionRequest) -> Caller:
        """The principal of a request, as of now. Raises ApiError unauthorized, or forbidden for a user that may do
        nothing."""
        call.caller = caller = self.principal(call.credential())
        return caller

    def principal(self, key: Credential) -> Caller:
        """The principal that a credential names, as of now. Raises as `identify` does."""
        holder = key.holder
        if holder is not None and holder.kind is HolderKind.NODE:
            self.check_member(holder)
        found = self._callers.get(key)
        table = self.table
        if found is not None and self._is_current(found):
            return found
        caller = self._found(key, table)
        if len(self._callers) >= CALLERS_MAX:
            self._callers.clear()
        self._callers[key] = caller
        return caller

    def check_member(self, holder: Holder) -> None:
        """Raises ApiError unless that node is a member. The certificate of a removed node may be valid for long."""
        if not holder.name.isdecimal() or self._node.configuration.member(int(holder.name)) is None:
            raise Denial(Code.FORBIDDEN, f"the certificate is that of {holder}, which is no member of this cluster")

    def _found(self, shown: Credential, table: AccessTable) -> Caller:
        generation = 0 if self._provider is None else self._provider.generation()  # before its keys decide
        if shown.token is not None:
            name, roles, expires_ms = self._of_token(shown.token, table)
        else:
            name, roles, expires_ms = self._of_certificate(shown), (), 0
        if name == NODE_NAME:
            admission = NODE_ADMISSION
        else:
            admission = encode_admission(table.admission(name, roles))
        _, permissions, why = table.principal(admission)
        if permissions is None:
            raise Denial(Code.FORBIDDEN, _WHY[why].format(name))
        return Caller(
            name,
            admission,
            permissions,
            table.revision,
            expires_ms,
            self._meter(name),
            is_vouched=shown.user is not None,
            keys_generation=generation if name.startswith(EXTERNAL_PREFIX) else 0,
        )

    def _of_token(self, token: str, table: AccessTable) -> tuple[str, tuple[str, ...], int]:
        """User, roles and expiry of a token."""
        if not token.startswith(PREFIX):
            return self._of_jwt(token)
        try:
            identifier = token_id(token)
        except BadToken as error:
            raise ApiError(Code.UNAUTHORIZED, str(error)) from None
        known = table.tokens.get(identifier)
        if not is_same(token, b"" if known is None else known.hash) or known is None:
            raise Denial(Code.UNAUTHORIZED, f"token {identifier} is not known: it was revoked, or is another cluster's")
        if known.expires_ms and self._now_ms() >= known.expires_ms:
            raise ApiError(Code.UNAUTHORIZED, f"token {identifier} has expired: raftlog token create makes a new one")
        return known.user, (), known.expires_ms

    def _of_jwt(self, token: str) -> tuple[str, tuple[str, ...], int]:
        if self._provider is None:
            raise ApiError(
                Code.UNAUTHORIZED,
                "the token is none of this cluster's, which begin with rl_, and no identity provider is set "
                "(security.jwt_keys)",
            )
        try:
            holder = self._provider.holder(token)
        except BadJwt as error:
            raise ApiError(Code.UNAUTHORIZED, f"the token does not count: {error}") from None
        return holder.name, holder.roles, int(holder.expires_s * 1_000)

    def _of_certificate(self, shown: Credential) -> str:
        holder, named = shown.holder, shown.user
        if holder is None:
            how = "show a client certificate, or send" if self._has_tls else "send"
            raise Denial(Code.UNAUTHORIZED, f"the request names no user: {how} {self._token_place}")
        if holder.kind is HolderKind.NODE:
            return NODE_NAME if named is None else named
        if named is not None:
            raise ApiError(Code.FORBIDDEN, "only a node may name the user of a request that it passes on")
        if not is_name(holder.name) or holder.name.startswith((EXTERNAL_PREFIX, RESERVED_PREFIX)):
            raise ApiError(Code.FORBIDDEN, f"the certificate's name {holder.name[:100]!r} cannot be that of a user")
        return holder.name

    def _is_current(self, caller: Caller) -> bool:
        """Whether no permission has changed since, nor a key of the provider, and its token has not expired."""
        if caller.revision != self.table.revision or (caller.expires_ms and self._now_ms() >= caller.expires_ms):
            return False
        return not caller.keys_generation or (
            self._provider is not None and caller.keys_generation == self._provider.generation()
        )

    def _now_ms(self) -> int:
        return max(clock.wall_ms(), self._node.machine.time_ms)

    def _meter(self, name: str) -> Meter:
        meter = self._meters.get(name)
        if meter is None:
            if len(self._meters) >= CALLERS_MAX:
                self._meters = {each: other for each, other in self._meters.items() if other.streams.open}
            limits = self._limits
            meter = self._meters[name] = Meter(
                name, limits.principal_requests_max, limits.principal_bytes_max, limits.principal_streams_max
            )
        return meter

    # -- handlers ---------------------------------------------------------------------------------------------------

    def permissions(self, call: AdmissionRequest) -> Permissions | None:
        """What the sender may do, as of now; None: everything, because access control is off. Raises ApiError."""
        table = self.table
        if not table.is_on:
            return None
        caller = call.caller
        if caller is None or not self._is_current(caller):
            caller = self.identify(call)
        return caller.permissions

    def check(self, call: AdmissionRequest, *grants: Grant) -> None:
        """Raises ApiError unless the sender has all of these grants now."""
        permissions = self.permissions(call)
        if permissions is not None:
            for grant in grants:
                if not permissions.allows(grant):
                    raise _missing(self.name(call), grant)

    def check_read(self, call: AdmissionRequest, key: bytes) -> None:
        """The same for the read of one key."""
        permissions = self.permissions(call)
        if permissions is not None and not permissions.allows_key(Verb.READ, Resource.KEYS, key):
            raise _missing(self.name(call), needs.key_grant(Verb.READ, key))

    def check_writer(self, call: AdmissionRequest) -> None:
        """Raises ApiError unless the sender may write something. Only such users open sessions."""
        permissions = self.permissions(call)
        if permissions is not None and not permissions.may_write:
            raise Denial(
                Code.FORBIDDEN,
                f"user {self.name(call)!r} may write nothing, so it gets no session: an admin gives a role of it the "
                "grant of what it wants to write",
            )

    def has_changed(self, call: AdmissionRequest) -> bool:
        """Whether what the sender may do may have changed since it was found out."""
        caller = call.caller
        return self.table.is_on if caller is None else not self._is_current(caller)

    def look(self, call: AdmissionRequest, *grants: Grant) -> None:
        """Raises ApiError once the reader of a stream may not go on. Streams call it before each slice."""
        if self.has_changed(call):
            self.check(call, *grants)

    def until(self, call: AdmissionRequest, due: float) -> float:
        """The earlier of that time of the event loop's clock, and the end of the sender's token."""
        caller = call.caller
        if caller is None or not caller.expires_ms:
            return due
        return min(due, clock.monotonic() + max(0, caller.expires_ms - self._now_ms()) / 1_000)

    def admission(self, call: AdmissionRequest, records: Sequence[BlockRecord] | Sequence[bytes]) -> bytes:
        """What a write of these records carries; b"" while access control is off. Raises ApiError."""
        permissions = self.permissions(call)
        if permissions is None:
            return b""
        commands = () if type(records[0]) is bytes else cast(Any, records)
        missing = needs.missing(permissions, commands)
        if missing is not None:
            raise _missing(self.name(call), missing)
        assert call.caller is not None
        return call.caller.admission

    @staticmethod
    def is_plain(call: AdmissionRequest) -> bool:
        """Whether a request of nothing but appends may say so: replicas then do not look at its keys."""
        return call.caller is None or call.caller.permissions.allows(needs.APPEND_LOG)

    @staticmethod
    def name(call: AdmissionRequest) -> str:
        """The principal's name; "" while access control is off."""
        return "" if call.caller is None else call.caller.name

    def owner(self, call: AdmissionRequest) -> str | None:
        """Whose sessions the sender may see; None: all."""
        return self.name(call) if self.permissions(call) is not None else None


_WHY: Final = {
    AccessReason.NO_USER: "there is no user {0!r}: an admin makes it with raftlog user set",
    AccessReason.BLOCKED: "user {0!r} is blocked",
    AccessReason.OUTDATED: "user {0!r} was changed meanwhile: send the request again",
}


def _missing(name: str, grant: Grant) -> Denial:
    return Denial(
        Code.FORBIDDEN, f"user {name!r} lacks the grant `{grant}`: an admin gives it by a role", missing=str(grant)
    )
