"""Defines what a request carries of its principal: its name, and the revision of permissions that admitted it.

The node that took the request makes it, and every replica checks it again where the request is applied. Its bytes lie
in front of the records of a block (docs/formats.md). It holds no secret.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgpack

EXTERNAL_PREFIX: Final = "jwt:"
"""The names of principals that an identity provider vouches for begin with it. Their admissions name their roles."""
NODE_NAME: Final = "raftlog:node"
"""The principal of what a node proposes by itself: digest points and trims by the retention rules."""
RESERVED_PREFIX: Final = "raftlog:"
"""No user has a name that begins with it."""


class CorruptAdmission(ValueError):
    """Bytes that are no admission."""


class Admission(NamedTuple):
    """A principal at a revision of permissions. `roles` are those that an identity provider names; only principals
    with EXTERNAL_PREFIX have them, beside the roles of a user of the same name."""

    name: str
    revision: int
    roles: tuple[str, ...] = ()


def encode_admission(admission: Admission) -> bytes:
    """Its bytes: a msgpack array [revision, name], and the roles behind that if there are any."""
    name, revision, roles = admission
    data: bytes = msgpack.packb([revision, name, *roles], use_bin_type=True)
    return data


def decode_admission(data: bytes) -> Admission:
    """Raises CorruptAdmission."""
    try:
        revision, name, *roles = msgpack.unpackb(data, raw=False, use_list=False)
    except Exception as error:
        raise CorruptAdmission(f"it is no array of a revision and names: {error}") from error
    if type(revision) is not int or revision < 0 or not all(type(each) is str for each in (name, *roles)):
        raise CorruptAdmission(f"its revision is {revision!r}, its names are {(name, *roles)!r}")
    if not name or (roles and not name.startswith(EXTERNAL_PREFIX)):
        raise CorruptAdmission(f"principal {name!r} names roles {roles}")
    return Admission(name, revision, tuple(roles))


NODE_ADMISSION: Final = encode_admission(Admission(NODE_NAME, 0))
"""Of every block that a node proposes by itself while access control is on."""
