"""Configurations: in force when appended, gone when cut."""

from typing import Any

import pytest

from raftlog.raft.codec.configuration import encode_configuration
from raftlog.raft.codec.entry import seal_entry
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.events import MessageIgnored
from raftlog.raft.messages import AppendEntries
from raftlog.raft.types import Entry, EntryKind, Mark
from tests.raft.lab import append, at, configuration, drain, extend, make_core


def change(previous: Mark, members: Configuration, term: int) -> Entry:
    """A configuration entry after `previous`."""
    return seal_entry(
        previous,
        term=term,
        kind=EntryKind.CONFIGURATION,
        count=1,
        time_ms=0,
        clock_ms=0,
        data=encode_configuration(members),
    )


def in_force(core: RaftCore) -> tuple[int, Configuration]:
    """Index and value."""
    return core.status().configuration_index, core.state.configuration


def test_a_configuration_is_in_force_from_its_append_on() -> None:
    """Not from its commit: in between, two disjoint majorities could exist (thesis 4.1, pitfall 50: a configuration in
    force only when applied)."""
    core = make_core(1, 3)
    entry = change(core.state.log.last, configuration(5), 2)
    append(core, [entry], prev=(1, 1), term=2)
    assert core.status().commit == 1
    assert in_force(core) == (2, configuration(5))


def test_a_cut_brings_the_configuration_before_back() -> None:
    """Also over two of them (pitfall 41: a configuration that outlives its cut entry)."""
    core = make_core(1, 3)
    first = change(core.state.log.last, configuration(4), 2)
    second = change(first.mark, configuration(5), 2)
    append(core, [first, second], prev=(1, 1), term=2)
    assert in_force(core) == (3, configuration(5))
    append(core, extend(first.mark, 3), prev=(2, 2), term=3, sender=3)
    assert in_force(core) == (2, configuration(4))
    append(core, extend(make_core().state.log.last, 4), prev=(1, 1), term=4, sender=3)
    assert in_force(core) == (1, configuration(3))


def test_older_configurations_are_forgotten_once_they_cannot_come_back() -> None:
    """The newest committed one is the oldest that is kept."""
    core = make_core(1, 3)
    first = change(core.state.log.last, configuration(4), 2)
    append(core, [first], prev=(1, 1), term=2, commit=2)
    assert [index for index, _ in core.state.configurations] == [2]


def test_a_configuration_that_is_none_is_refused_with_its_entry() -> None:
    """It is never skipped: nothing of the message is taken, and the process goes on."""
    core = make_core(1, 3)
    entry = seal_entry(
        core.state.log.last, term=2, kind=EntryKind.CONFIGURATION, count=1, time_ms=0, clock_ms=0, data=b"\x00"
    )
    core.step(
        AppendEntries(sender=2, to=1, term=2, prev_index=1, prev_term=1, commit=0, round=0, entries=(entry,)), at(0)
    )
    out = drain(core)
    assert any("impossible: configuration" in event.reason for event in out.events if isinstance(event, MessageIgnored))
    assert (core.state.log.last.index, out.entries) == (1, [])


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"voters": (2, 1)}, "sorted"),
        ({"voters": (1, 1)}, "distinct"),
        ({"voters": (1, 9)}, "no members"),
        ({"voters": (1, 2), "learners": (2,)}, "voter and learner"),
        ({"outgoing": (7,)}, "no members"),
    ],
)
def test_impossible_configurations_cannot_be_made(fields: dict[str, Any], what: str) -> None:
    """Each mistake is named."""
    members = tuple(Member(node, f"{node:032x}", "", "") for node in (1, 2, 3))
    with pytest.raises(ValueError, match=what):
        Configuration(members, **fields)


def test_members_are_found_by_number() -> None:
    """Voters on either side of a joint change count; peers are everyone else, learners too."""
    members = configuration(4, learners=[4])
    assert members.peers(1) == (2, 3, 4)
    assert members.is_voter(3)
    assert not members.is_voter(4)
    found = members.member(2)
    assert found is not None
    assert found.peer == "127.0.0.1:2"
    assert members.member(9) is None
    assert Configuration(members.members, (1,), (2,)).is_voter(2)
