"""Configurations: in force when appended, gone when cut."""

from typing import Any

import pytest

from raftlog.raft.codec.entry import seal_entry
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.events import MessageIgnored
from raftlog.raft.types import EntryKind
from tests.raft.lab import append, append_entries, at, configuration, configuration_entry, drain, extend, make_core


def in_force(core: RaftCore) -> tuple[int, Configuration]:
    """Index and value."""
    return core.status().configuration_index, core.state.configuration


def test_a_configuration_is_in_force_from_its_append_on() -> None:
    """Not from its commit: in between, two disjoint majorities could exist (thesis 4.1, pitfall 50: a configuration in
    force only when applied)."""
    core = make_core(1, 3)
    entry = configuration_entry(core.state.log.last, configuration(5), 2)
    append(core, [entry], prev=(1, 1), term=2)
    assert core.status().commit == 1
    assert in_force(core) == (2, configuration(5))


def test_a_cut_brings_the_configuration_before_back() -> None:
    """Also over two of them (pitfall 41: a configuration that outlives its cut entry)."""
    core = make_core(1, 3)
    first = configuration_entry(core.state.log.last, configuration(4), 2)
    second = configuration_entry(first.mark, configuration(5), 2)
    append(core, [first, second], prev=(1, 1), term=2)
    assert in_force(core) == (3, configuration(5))
    append(core, extend(first.mark, 3), prev=(2, 2), term=3, sender=3)
    assert in_force(core) == (2, configuration(4))
    append(core, extend(make_core().state.log.last, 4), prev=(1, 1), term=4, sender=3)
    assert in_force(core) == (1, configuration(3))


def test_older_configurations_are_forgotten_once_they_cannot_come_back() -> None:
    """The newest committed one is the oldest that is kept."""
    core = make_core(1, 3)
    first = configuration_entry(core.state.log.last, configuration(4), 2)
    append(core, [first], prev=(1, 1), term=2, commit=2)
    assert [index for index, _ in core.state.configurations] == [2]


def test_a_configuration_that_is_none_is_refused_with_its_entry() -> None:
    """It is never skipped: nothing of the message is taken, and the process goes on."""
    core = make_core(1, 3)
    entry = seal_entry(
        core.state.log.last, term=2, kind=EntryKind.CONFIGURATION, count=1, time_ms=0, clock_ms=0, data=b"\x00"
    )
    core.step(append_entries([entry], prev=(1, 1), term=2, commit=0), at(0))
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
