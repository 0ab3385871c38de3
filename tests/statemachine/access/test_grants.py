"""Grants, their text, and the compiled form that answers checks."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from raftlog.statemachine.access.grants import (
    BUILT_IN,
    RANGED,
    BadGrant,
    Grant,
    Resource,
    Verb,
    check_grant,
    parse_grant,
)
from raftlog.statemachine.access.permissions import Permissions

KEYS = st.binary(max_size=3).map(lambda key: bytes(byte % 3 + 0x61 if byte < 200 else 0xFF for byte in key))
ANY_RANGE = st.tuples(st.binary(max_size=5), st.binary(max_size=5)).filter(
    lambda both: not both[1] or both[0] < both[1]
)
RANGES = st.tuples(KEYS, KEYS).filter(lambda both: not both[1] or both[0] < both[1])


@pytest.mark.parametrize(
    ("text", "grant"),
    [
        ("read on keys:orders/*", Grant(Verb.READ, Resource.KEYS, b"orders/", b"orders0")),
        ("write on keys:a..m", Grant(Verb.WRITE, Resource.KEYS, b"a", b"m")),
        ("write on keys:app.yaml", Grant(Verb.WRITE, Resource.KEYS, b"app.yaml", b"app.yaml\0")),
        ("append on keys:%00%FF*", Grant(Verb.APPEND, Resource.KEYS, b"\0\xff", b"\1")),
        ("read on keys:*", Grant(Verb.READ, Resource.KEYS, b"", b"")),
        ("read on keys:m..", Grant(Verb.READ, Resource.KEYS, b"m", b"")),
        ("append on log", Grant(Verb.APPEND, Resource.LOG)),
        ("write on groups:billing*", Grant(Verb.WRITE, Resource.GROUPS, b"billing", b"billinh")),
        ("access on cluster", Grant(Verb.ACCESS, Resource.CLUSTER)),
    ],
)
def test_a_grant_is_what_its_text_says_and_prints_it_again(text: str, grant: Grant) -> None:
    """Prefixes, ranges, single keys and whole resources: refusals and listings print what an admin would write."""
    assert parse_grant(text) == grant
    assert str(grant) == text


@given(st.sampled_from(sorted(RANGED)), ANY_RANGE)
def test_every_range_survives_its_text(resource: Resource, part: tuple[bytes, bytes]) -> None:
    """Keys are any bytes: dots, stars and percent signs in them never read as the grammar."""
    grant = Grant(Verb.READ, resource, *part)
    assert parse_grant(str(grant)) == grant


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("read keys:a", "VERB on RESOURCE"),
        ("eat on keys:a", "verbs are read, write, append, operate, members, access, watch"),
        ("read on tables:a", "resources keys, log, groups, cluster"),
        ("read on keys", r"PREFIX\*"),
        ("read on log:a", "write read on log"),
        ("write on log", "write on log does not exist: there is read, append"),
        ("operate on keys:a", "does not exist"),
        ("read on keys:m..a", "its end must be above its start"),
        ("read on keys:a%2", "two hex digits"),
        ("read on keys:a*b", "two hex digits"),
    ],
)
def test_text_that_is_no_grant_is_refused_with_what_is_expected(text: str, said: str) -> None:
    """The message shows the form."""
    with pytest.raises(BadGrant, match=said):
        parse_grant(text)


def test_built_in_roles_hold_grants_that_exist() -> None:
    """The admin may do everything that the others may."""
    every = Permissions(BUILT_IN["admin"])
    for grants in BUILT_IN.values():
        assert all(every.allows(check_grant(grant)) for grant in grants)
    assert {str(grant) for grant in BUILT_IN["admin"]} >= {"access on cluster", "members on cluster", "write on keys:*"}


@given(st.lists(RANGES, max_size=6), RANGES, KEYS)
def test_compiled_ranges_allow_what_the_grants_together_allow(
    granted: list[tuple[bytes, bytes]], asked: tuple[bytes, bytes], key: bytes
) -> None:
    """The compiled check agrees with a search of one grant after the other: for a key, and for a range, which may lie
    across several adjacent grants."""
    permissions = Permissions([Grant(Verb.WRITE, Resource.KEYS, *part) for part in granted])

    def naive(start: bytes, end: bytes) -> bool:
        """Walks from the start of the range to its end, by the grant that leads on furthest."""
        while True:
            reach = [stop for begin, stop in granted if begin <= start and (not stop or start < stop)]
            if not reach:
                return False
            if b"" in reach or (end and max(reach) >= end):
                return True
            start = max(reach)

    assert permissions.allows(Grant(Verb.WRITE, Resource.KEYS, *asked)) == naive(*asked)
    assert permissions.allows_key(Verb.WRITE, Resource.KEYS, key) == naive(key, key + b"\0")
    assert not permissions.allows(Grant(Verb.READ, Resource.KEYS, *asked))
    assert not permissions.allows(Grant(Verb.WRITE, Resource.GROUPS, *asked))


@pytest.mark.parametrize("key", [b"order", b"orders", b"orders0", b"Orders/", b"orders.", b"orders/\xff\xff"])
def test_pitfall_87_a_prefix_that_nearly_matches_is_none(key: bytes) -> None:
    """Only keys that begin with every byte of the prefix."""
    permissions = Permissions([parse_grant("write on keys:orders/*")])
    assert permissions.allows_key(Verb.WRITE, Resource.KEYS, key) == key.startswith(b"orders/")
