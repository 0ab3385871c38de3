"""Forgers that know the protocol: no sequence of their words is believed, ends a belief, or grows a state."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import Phase, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from raftlog.cluster.peers.hello import Hello, Purpose, Word
from raftlog.cluster.peers.hello_proof import WAITING_MAX, HelloStanding, Proofs
from tests.cluster.nodes import START
from tests.cluster.peers.test_transport import LOG

FORGED_DISKS = st.sampled_from([f"{2:032x}", f"{3:032x}", "f" * 32])
NODES = st.sampled_from([2, 3])
DISKS = {2: f"{2:032x}", 3: f"{3:032x}"}
TRUE_CHALLENGES = {2: 2_000, 3: 3_000}
"""What the real peers say on their connections; a forger does not know it, and makes up smaller ones."""


@dataclass(eq=False)
class OneLink:
    """This node's link to a member; a forger does not hear what it says."""

    node: int
    address: str
    disk: str
    is_welcome: bool = True
    up_since: float = 0.0
    failed_at: float = 0.0
    trouble: str = ""
    is_up: bool = True

    def say(self, word: Word, number: int) -> None:
        """A word to the member."""

    def ask(self) -> None:
        """The question."""

    def redial(self) -> None:
        """Another connection."""


@dataclass(eq=False)
class OneConnection:
    """A connection that a peer or a forger dialled."""

    machine: Forgers
    hello: Hello
    is_true: bool
    answer: int
    came: float
    challenge: int
    standing: HelloStanding = HelloStanding.WAITING

    @property
    def sender(self) -> int:
        """The node that it names."""
        return self.hello.sender

    def judge(self) -> None:
        """As `Accepted.judge`: a belief stays."""
        if self.standing is HelloStanding.BELIEVED:
            return
        standing = self.machine.proofs.standing(self.hello, self.answer, self.came)
        if isinstance(standing, str):
            self.end(standing)
        elif standing is not HelloStanding.WAITING:
            self.standing = standing
            if standing is HelloStanding.BELIEVED:
                self.machine.proofs.forget(self)
                self.machine.proofs.believed(self, self.hello)

    def is_another(self, hello: Hello) -> bool:
        """As `Accepted.is_another`."""
        own = self.hello
        return (own.sender, own.incarnation) == (hello.sender, hello.incarnation) and own.boot != hello.boot

    def end(self, reason: str) -> None:
        """It is closed."""
        assert not (self.is_true and self.standing is HelloStanding.BELIEVED), f"a forger ended a true peer: {reason}"
        self.machine.proofs.forget(self)
        self.machine.accepted.pop(self, None)


@dataclass
class Owner:
    """The links of this node."""

    links: dict[int, OneLink]

    def link_to(self, node: int) -> OneLink | None:
        """The link to that node."""
        return self.links.get(node)

    def links_to(self, node: int) -> list[OneLink]:
        """All links to that node."""
        return [link for link in self.links.values() if link.node == node]


class Forgers(RuleBasedStateMachine):
    """True peers and forgers, in any order. The forger knows challenges of other members and of former addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.accepted: dict[OneConnection, None] = {}
        self.links = {node: OneLink(node, f"{node}:0", DISKS[node]) for node in DISKS}
        self.proofs = Proofs(Owner(self.links), self.accepted.keys())
        self.stale: list[int] = [0, 1, 1 << 62]
        self.time = 0.0

    def came(self, node: int, disk: str, *, is_true: bool, answer: int, challenge: int) -> None:
        """A hello comes."""
        self.time += 1.0
        hello = Hello(
            log=LOG,
            sender=node,
            to=1,
            incarnation=disk,
            boot=7 if is_true else 10**6,
            purpose=Purpose.CONSENSUS,
            answer=answer,
            challenge=challenge,
            start=START,
        )
        connection = OneConnection(self, hello, is_true, answer, self.time, challenge)
        self.accepted[connection] = None
        self.proofs.challenged(connection)
        connection.judge()
        if connection in self.accepted and connection.standing is not HelloStanding.BELIEVED:
            self.proofs.wait(connection, hello)

    @rule(node=NODES)
    def true_peer(self, node: int) -> None:
        """The member dials; its listener got the challenge of the link to there."""
        answer = self.proofs.challenge(self.links[node])
        self.came(node, DISKS[node], is_true=True, answer=answer, challenge=TRUE_CHALLENGES[node])
        assert self.proofs.answer_for(node) == TRUE_CHALLENGES[node]

    @rule(node=NODES, disk=FORGED_DISKS, pick=st.integers(0, 9), data=st.integers(1, 99))
    def forger(self, node: int, disk: str, pick: int, data: int) -> None:
        """A forger dials, with what it may have heard: other members' challenges, former ones, made-up ones."""
        known = [*self.stale, *(self.proofs.challenge(link) for link in self.links.values() if link.node != node)]
        self.came(node, disk, is_true=False, answer=known[pick % len(known)], challenge=data)

    @rule(node=NODES)
    def another_disk(self, node: int) -> None:
        """At the member's address is a wiped disk: it knows the challenge, and its promises do not count."""
        answer = self.proofs.challenge(self.links[node])
        self.came(node, "f" * 32, is_true=False, answer=answer, challenge=1)

    @rule(pick=st.integers(0, 99), data=st.integers(1, 99), answer=st.integers(0, 9))
    def forged_words(self, pick: int, data: int, answer: int) -> None:
        """An open forged connection says another challenge and another answer."""
        forged = [each for each in self.accepted if not each.is_true]
        if forged:
            each = forged[pick % len(forged)]
            each.challenge, before, each.answer = data, each.answer, self.stale[answer % len(self.stale)]
            self.proofs.challenged(each)
            each.judge()
            each.answer = before

    @rule(node=NODES, is_up=st.booleans())
    def link_changes(self, node: int, is_up: bool) -> None:
        """The link breaks, or comes up."""
        self.time += 1.0
        link = self.links[node]
        link.is_up, link.failed_at = is_up, link.failed_at if is_up else self.time
        self.proofs.look(node)

    @rule(node=NODES)
    def member_moves(self, node: int) -> None:
        """The member has another address: the forger hears the former challenge, and true peers dial again."""
        self.stale.append(self.proofs.challenge(self.links[node]))
        for each in [each for each in self.accepted if each.is_true and each.sender == node]:
            self.proofs.forget(each)
            del self.accepted[each]
        self.links[node] = OneLink(node, f"{node}:{len(self.stale)}", DISKS[node])
        self.proofs.keep(self.links)

    @invariant()
    def no_forger_is_believed(self) -> None:
        """A belief shows the member's listener, and nothing grows."""
        assert not [each for each in self.accepted if not each.is_true and each.standing is HelloStanding.BELIEVED]
        for each in self.accepted:
            if each.is_true and each.standing is HelloStanding.BELIEVED:
                assert self.proofs.answer_for(each.sender) == TRUE_CHALLENGES[each.sender]
        assert len(self.proofs._waiting) <= WAITING_MAX
        assert len(self.proofs._challenges) <= len(self.links)
        assert set(self.proofs._told) <= set(self.links)


def test_no_forger_is_believed() -> None:
    """Hellos, challenges and answers of forgers before and after the belief of true peers, in random orders."""
    rules = settings(
        max_examples=60, stateful_step_count=40, deadline=None, phases=[Phase.generate], report_multiple_bugs=False
    )
    run_state_machine_as_test(Forgers, settings=rules)
