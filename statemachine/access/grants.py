"""Defines verbs, resources and grants, their text, and the built-in roles.

A role is a set of grants. A grant is one verb on one resource: keys from a start to an end, consumer groups by name in
the same way, the log, or the cluster. The text of a grant is what people write and what refusals name:

    read on keys:orders/*         every key with that prefix
    write on keys:a..m            the keys from a on, below m
    write on keys:config          this key alone
    append on log                 read on log
    write on groups:billing*      claim, commit, reset and delete those consumer groups
    watch on cluster              operate on cluster, which includes watch
    members on cluster            access on cluster

In a key or a name of a group, bytes other than letters, digits and `-_/:=,@+~.` are written as `%` and two hex digits.
So is a `.` beside another one, or at an end.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final, NamedTuple

from raftlog.statemachine.store import next_key, prefix_end


class Verb(IntEnum):
    """What a grant allows. The numbers are in every log for ever."""

    READ = 1  # keys: get, range, watch; log: its records; groups: their position
    WRITE = 2  # keys: put, delete, transactions; groups: claim, commit, reset, delete
    APPEND = 3  # log: records of any key and of none; keys: records of these keys alone
    OPERATE = 4  # cluster: what WATCH allows, backups, compaction, trim, transfer of the leader
    MEMBERS = 5  # cluster: adding, promoting and removing nodes
    ACCESS = 6  # cluster: users, roles and tokens
    WATCH = 7  # cluster: status with followers and groups, metrics, explanations


class Resource(IntEnum):
    """What a grant is about. The numbers are in every log for ever."""

    KEYS = 1
    LOG = 2
    GROUPS = 3
    CLUSTER = 4


RANGED: Final = (Resource.KEYS, Resource.GROUPS)
"""Resources of which a grant names a part, from a start to an end."""

POSSIBLE: Final[dict[Resource, tuple[Verb, ...]]] = {
    Resource.KEYS: (Verb.READ, Verb.WRITE, Verb.APPEND),
    Resource.LOG: (Verb.READ, Verb.APPEND),
    Resource.GROUPS: (Verb.READ, Verb.WRITE),
    Resource.CLUSTER: (Verb.WATCH, Verb.OPERATE, Verb.MEMBERS, Verb.ACCESS),
}
"""The verbs of each resource."""


class BadGrant(ValueError):
    """Text or values that are no grant; the message names the expected form."""


class Grant(NamedTuple):
    """One verb on one resource. Of keys and groups those from `start` to below `end` (b"": to the last)."""

    verb: Verb
    resource: Resource
    start: bytes = b""
    end: bytes = b""

    def __str__(self) -> str:
        head = f"{self.verb.name.lower()} on {self.resource.name.lower()}"
        return f"{head}:{_text_of(self.start, self.end)}" if self.resource in RANGED else head


def overlaps(one: Grant, other: Grant) -> bool:
    """Whether both allow some same thing."""
    is_below = (not other.end or one.start < other.end) and (not one.end or other.start < one.end)
    is_same = one.verb == other.verb or sorted((one.verb, other.verb)) == [Verb.OPERATE, Verb.WATCH]
    return is_same and one.resource == other.resource and is_below


def check_grant(grant: Grant) -> Grant:
    """The grant. Raises BadGrant if no such verb is on that resource, or its range is empty."""
    verb, resource, start, end = grant
    if verb not in POSSIBLE[resource]:
        allowed = ", ".join(each.name.lower() for each in POSSIBLE[resource])
        raise BadGrant(f"{verb.name.lower()} on {resource.name.lower()} does not exist: there is {allowed}")
    if resource not in RANGED and (start or end):
        raise BadGrant(f"{resource.name.lower()} has no parts: write {verb.name.lower()} on {resource.name.lower()}")
    if end and end <= start:
        raise BadGrant(f"the range of {grant} is empty: its end must be above its start")
    return grant


def parse_grant(text: str) -> Grant:
    """The grant of its text. Raises BadGrant."""
    words = text.split()
    if len(words) != 3 or words[1] != "on":
        raise BadGrant(f"{text!r} is no grant: write VERB on RESOURCE, as in read on keys:orders/*")
    name, colon, part = words[2].partition(":")
    try:
        verb, resource = Verb[words[0].upper()], Resource[name.upper()]
    except KeyError as error:
        verbs, resources = (", ".join(each.name.lower() for each in kind) for kind in (Verb, Resource))
        raise BadGrant(f"{text!r} is no grant: verbs are {verbs}, resources {resources}") from error
    if (resource in RANGED) != bool(colon and part):
        form = f"{name}:PREFIX*, {name}:START..END or {name}:KEY" if resource in RANGED else name
        raise BadGrant(f"{text!r} is no grant: write {words[0]} on {form}")
    start, end = _range_of(part) if colon else (b"", b"")
    return check_grant(Grant(verb, resource, start, end))


_PLAIN: Final = re.compile(r"[A-Za-z0-9\-_/:=,@+~.]*")
_CODED: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_ESCAPED: Final = re.compile(rb"[^A-Za-z0-9\-_/:=,@+~.]|\.(?=\.)|(?<=\.)\.|\A\.|\.\Z")


def _quoted(data: bytes) -> str:
    return _ESCAPED.sub(lambda found: b"%%%02X" % found[0][0], data).decode()


def _unquoted(text: str) -> bytes:
    if not _PLAIN.fullmatch(re.sub(r"%[0-9A-Fa-f]{2}", "", text)):
        raise BadGrant(f"{text!r}: write bytes other than letters, digits and -_/:=,@+~. as % and two hex digits")
    return _CODED.sub(lambda found: bytes((int(found[1], 16),)), text.encode())


def _text_of(start: bytes, end: bytes) -> str:
    if start and end == next_key(start):
        return _quoted(start)
    if end == prefix_end(start):
        return f"{_quoted(start)}*"
    return f"{_quoted(start)}..{_quoted(end)}"


def _range_of(text: str) -> tuple[bytes, bytes]:
    start, dots, end = text.partition("..")
    if dots:
        return _unquoted(start), _unquoted(end)
    if text.endswith("*"):
        prefix = _unquoted(text[:-1])
        return prefix, prefix_end(prefix)
    key = _unquoted(text)
    return key, next_key(key)


# ---------------------------------------------------------------------------------------------------------------
# Built-in roles.

_READER: Final = ("read on keys:*", "read on log", "read on groups:*")
_WRITER: Final = (*_READER, "write on keys:*", "append on log", "append on keys:*", "write on groups:*")
_OPERATOR: Final = ("operate on cluster", "members on cluster")
BUILT_IN: Final[dict[str, tuple[Grant, ...]]] = {
    name: tuple(map(parse_grant, texts))
    for name, texts in {
        "monitor": ("watch on cluster",),
        "reader": _READER,
        "writer": _WRITER,
        "operator": _OPERATOR,
        "admin": (*_WRITER, *_OPERATOR, "access on cluster"),
    }.items()
}
"""Roles that every cluster has. They are part of the program: no command changes them."""
