"""Each property sees the breach that it is there for, and the page about them is whole."""

import re
from pathlib import Path
from random import Random

import pytest

from raftlog.chaos.sim.invariants import known
from raftlog.chaos.sim.invariants.elections import configuration_safety
from raftlog.chaos.sim.mutants import MUTANTS
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.quorum import majority
from raftlog.raft.types import NodeId

ROOT = Path(__file__).resolve().parent.parent.parent.parent
PACKAGE = ROOT / "chaos" / "sim" / "invariants"
PAGE = ROOT / "docs" / "invariants.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text().splitlines()
    if line.startswith("| ") and not line.startswith(("| property", "| ---"))
]


def test_the_page_names_every_property_and_mutants_that_exist() -> None:
    """One row per file of the package, each with its section and a planted bug that proves the check."""
    files = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.glob("*/*.py") if path.name != "__init__.py"}
    assert {row[3].strip("`") for row in ROWS} == files
    for row in ROWS:
        assert len(row) == 5
        assert all(row), row
        assert row[4].split("`")[1] in MUTANTS, row


@pytest.mark.parametrize("name", sorted({row[3].strip("`") for row in ROWS}))
def test_every_property_says_what_it_is_and_where_it_comes_from(name: str) -> None:
    """A property's file has its name and its section as constants, and raises with them."""
    text = (PACKAGE / name).read_text()
    assert re.search(r'^PROPERTY = "', text, re.MULTILINE)
    assert re.search(r'^SECTION = "', text, re.MULTILINE)
    assert "InvariantBroken(" in text


def of(voters: tuple[NodeId, ...], outgoing: tuple[NodeId, ...] = ()) -> Configuration:
    """A configuration of seven members."""
    members = tuple(Member(node, f"{node:032x}", "", "") for node in range(1, 8))
    return Configuration(members, voters, outgoing)


def quorums(configuration: Configuration) -> list[frozenset[NodeId]]:
    """Every quorum, by trying all subsets."""
    everyone = sorted({*configuration.voters, *configuration.outgoing})
    found = []
    for bits in range(1 << len(everyone)):
        chosen = frozenset(node for position, node in enumerate(everyone) if bits >> position & 1)
        sides = [side for side in (configuration.voters, configuration.outgoing) if side]
        if all(len(chosen.intersection(side)) >= majority(len(side)) for side in sides):
            found.append(chosen)
    return found


def test_quorums_that_must_meet() -> None:
    """`must_meet` and `is_quorum` against all subsets, for a few hundred pairs of configurations, joint ones too."""
    random = Random(5)

    def side() -> tuple[NodeId, ...]:
        return tuple(sorted(random.sample(range(1, 6), random.randint(1, 5))))

    met = 0
    for _ in range(300):
        one, other = of(side(), random.choice(((), side()))), of(side(), random.choice(((), side())))
        expected = all(a & b for a in quorums(one) for b in quorums(other))
        if configuration_safety.must_meet(one, other):
            assert expected, (one, other)
        met += expected
        chosen = list(side())
        assert known.is_quorum(one, chosen) == any(quorum <= set(chosen) for quorum in quorums(one))
    assert 50 < met < 250


def test_one_voter_at_a_time_and_joint_changes_meet_and_others_do_not() -> None:
    """What thesis 4.1 and 4.3 allow, and the change that they are there to forbid."""
    must_meet = configuration_safety.must_meet
    assert must_meet(of((1, 2, 3)), of((1, 2, 3, 4)))
    assert must_meet(of((1, 2, 3)), of((1, 2)))
    assert must_meet(of((1, 2, 3)), of((4, 5), (1, 2, 3)))
    assert must_meet(of((4, 5), (1, 2, 3)), of((4, 5)))
    assert not must_meet(of((1, 2, 3)), of((1, 2, 3, 4, 5)))
    assert not must_meet(of((1, 2, 3)), of((4, 5)))
