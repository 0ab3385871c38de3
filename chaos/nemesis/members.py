"""Changes members while other faults go on: adds, replaces, removes, and hands leadership over.

What an operator does (`raftlog.chaos.deploy.membership`), past the proxies; the links of a new member go through
proxies of their own. The proof is what the leader says of its members. In the end the same numbers vote as before, some
on new disks.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from raftlog.chaos.deploy import membership
from raftlog.chaos.nemesis.fault import FaultSkipped, Field, Injection, Nemesis
from raftlog.cluster.api.status import fingerprint
from raftlog.cluster.client.errors import ClientError

LASTS_S: Final = (1.0, 4.0)
HANDED_S: Final = (0.2, 1.0)
REMOVED: Final = 15  # how a node ends that is no member any more
KILLED: Final = -9


def _voters(field: Field) -> str:
    known = membership.members(field.deployment)
    if known is None:
        return "no leader reports the voters now"
    return f"voters {[each.node for each in known.members if each.role == 'voter']} at index {known.configuration}"


def _added(field: Field) -> Injection:
    """One more node, as a learner that becomes a voter by itself, and out again."""
    deployment = field.deployment
    node = next((each for each in deployment.spares if each not in deployment.cluster.nodes), None)
    if node is None:
        raise FaultSkipped("every number to spare is in use")
    field.leader()  # every change needs one
    membership.add(deployment, node)

    def heal() -> str:
        code = membership.remove(deployment, node)
        return f"removed again: it ended with {code}; {_voters(field)}"

    return Injection(f"node {node} joins", f"{_voters(field)}; pid {deployment.cluster.pid(node)}", heal)


def _replaced(field: Field) -> Injection:
    """A node that was whole gets a new disk."""
    deployment = field.deployment
    node = field.chance.choice(field.nodes)
    field.may_lose(node)
    field.leader()  # every change needs one
    old = fingerprint(deployment.cluster.place(node).incarnation)
    deployment.disks.lose(node, "to be replaced")
    membership.replace(deployment, node)
    new = fingerprint(deployment.cluster.place(node).incarnation)
    proof = f"disk {new} has the place of {old}; {_voters(field)}"
    return Injection(f"node {node}", proof, lambda: _voters(field))


def _leader_removed(field: Field) -> Injection:
    """The leader is taken out: it hands over and ends; later it joins again, with a new disk."""
    deployment = field.deployment
    leader = field.leader()
    field.may_lose(leader)
    deployment.disks.lose(leader, "removed")
    code = membership.remove(deployment, leader)
    if code not in (0, REMOVED, KILLED):
        field.problems.append(f"node {leader} ended with {code} after it was removed: {REMOVED} was due")
    deployment.disks.lose(leader, "removed")

    def heal() -> str:
        membership.add(deployment, leader)
        return f"joined again: {_voters(field)}"

    return Injection(f"leader {leader}", f"it is out and ended with {code}; {_voters(field)}", heal)


def _handed_over(field: Field) -> Injection:
    """An operator hands leadership to another node."""
    leader = field.leader()
    to = field.chance.choice([node for node in field.nodes if node != leader])
    try:
        transferred = membership.transfer(field.deployment, to)
    except ClientError as error:
        raise FaultSkipped(f"node {leader} leads on: {error}") from error
    proof = f"node {transferred.leader.node} leads, {transferred.elapsed_ms:.0f} ms later"
    return Injection(f"leader {transferred.old} to node {to}", proof, lambda: None)


_nemesis: Final = partial(Nemesis, lasts_s=LASTS_S, is_heavy=True)

NEMESES: Final = (
    _nemesis(
        "member-added",
        "one more node joins, becomes a voter by itself, and is removed",
        _added,
        needs=frozenset(("spare",)),
    ),
    _nemesis("member-replaced", "one node gets a new disk", _replaced),
    _nemesis(
        "leader-removed", "the leader is taken out, and joins again with a new disk", _leader_removed, moves_leader=True
    ),
    _nemesis(
        "handed-over",
        "an operator hands leadership to another node",
        _handed_over,
        lasts_s=HANDED_S,
        moves_leader=True,
        is_heavy=False,
    ),
)
