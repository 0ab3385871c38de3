"""Changes members as an operator does: asks until a change is accepted, starts new nodes, waits for their votes.

It sends requests past the proxies, as from the machines themselves. Another fault may hit any step. So each step asks
again until a deadline, and asks only for changes that are not made yet.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from raftlog import ClientError, NotApplied, SyncClient
from raftlog.chaos.deploy.deployment import Deployment
from raftlog.cluster.api.members import ChangeAnswer, ChangeIn, MemberAnswer, Members, TransferAnswer
from raftlog.cluster.api.status import fingerprint

T = TypeVar("T")

CHANGE_S: Final = 120.0
"""For each step of a change, beside partitions that come and go, on a machine that may be busy."""

ASK_S: Final = 4.0
AGAIN_S: Final = 0.1
_FINAL: Final = ("invalid", "last_voter")  # refusals that stay the same however long one waits


class ChangeFailed(RuntimeError):
    """The members are not as required; the message has the last answer."""


def members(deployment: Deployment) -> Members | None:
    """The members as the leader has them, when no change is under way; None if no leader answers."""
    with suppress(ClientError, OSError):
        with SyncClient(_urls(deployment), deadline_s=ASK_S, sessions=False) as client:
            known = client.members()
        if known.leader is None:
            return None
        with SyncClient(
            _url_of(deployment, known.leader.node, known.leader.url), bound=True, deadline_s=ASK_S, sessions=False
        ) as client:
            known = client.members()
        if any(each.match is not None for each in known.members):  # it does lead
            return known
    return None


def member_of(known: Members, node: int) -> MemberAnswer | None:
    """That node, if it is a member."""
    return next((each for each in known.members if each.node == node), None)


def transfer(deployment: Deployment, to: int | None = None) -> TransferAnswer:
    """Hands leadership over. Raises ClientError."""
    with SyncClient(_urls(deployment), deadline_s=ASK_S, sessions=False) as client:
        return client.transfer_leadership(to)


def add(deployment: Deployment, node: int) -> None:
    """A new node of that number with a disk of its own, as a learner that becomes a voter by itself; until it votes.

    Raises ChangeFailed.
    """
    own = f"{deployment.cluster.scheme}://{deployment.http_of(node)}"
    url = deployment.url(node) if node in deployment.spares else own
    peer, incarnation = deployment.peer_of(node), secrets.token_hex(16)
    _join(deployment, ChangeIn("add", node, peer=peer, url=url, incarnation=incarnation), node)


def replace(deployment: Deployment, node: int) -> None:
    """Gives that number a new disk, and waits until the new disk votes. Raises ChangeFailed.

    A running process is killed. A lost disk is moved away, so that no start can use it.
    """
    if node in deployment.cluster.nodes:
        deployment.cluster.kill(node)
        data = deployment.cluster.data(node)
        if node in deployment.disks.lost and data.exists():
            data.rename(data.with_name(f"{data.name}.lost-{secrets.token_hex(4)}"))
    _join(deployment, ChangeIn("replace", node, incarnation=secrets.token_hex(16)), node)


def remove(deployment: Deployment, node: int) -> int:
    """Takes a node out and stops it for good: its exit code. Raises ChangeFailed."""

    def is_out() -> bool:
        known = members(deployment)
        if known is None or known.is_changing:
            return False
        if member_of(known, node) is None:
            return True
        _ask(deployment, ChangeIn("remove", node))
        return False

    _until(is_out, f"node {node} is out")
    deployment.disks.replaced(node)
    return deployment.cluster.dismiss(node)


def settle(deployment: Deployment) -> None:
    """Restores the first members after any changes. Raises ChangeFailed.

    Spare numbers are removed, every other node votes on its disk of this deployment, and no disk counts as lost.
    """
    known = _until(lambda: members(deployment), "the members are known")
    for node in deployment.spares:
        if node in deployment.cluster.nodes or member_of(known, node) is not None:
            remove(deployment, node)
    for node in deployment.first_nodes:
        member = member_of(known, node)
        if member is None:
            add(deployment, node)
        elif node in deployment.disks.lost or not _has_disk(deployment, node, member.disk):
            replace(deployment, node)  # or a change whose outcome no client learned
        elif member.role != "voter":
            _make_voter(deployment, node)


def _has_disk(deployment: Deployment, node: int, disk: str) -> bool:
    return node in deployment.cluster.nodes and fingerprint(deployment.cluster.place(node).incarnation) == disk


def _join(deployment: Deployment, change: ChangeIn, node: int) -> None:
    """Asks for a change that lets a new disk in, until it is taken; then starts it and waits until it votes."""

    def taken() -> ChangeAnswer | None:
        known = members(deployment)
        if known is None or known.is_changing:
            return None
        member = member_of(known, node)
        if member is not None and (change.change == "add" or member.disk == fingerprint(change.incarnation or "")):
            return ChangeAnswer(change.change, node, is_changing=False, index=known.index, term=known.term)
        return _ask(deployment, change)

    answer = _until(taken, f"{change.change} {node} is taken")
    if answer.join is None:  # its answer was lost: the change is in force, but the join file is lost
        return _join(deployment, ChangeIn("replace", node, incarnation=secrets.token_hex(16)), node)
    deployment.join(node, answer.join)
    _make_voter(deployment, node)
    deployment.disks.replaced(node)
    return None


def _make_voter(deployment: Deployment, node: int) -> None:
    incarnation = deployment.cluster.place(node).incarnation
    disk = fingerprint(incarnation)

    def is_voter() -> bool:
        known = members(deployment)
        if known is None:
            return False
        member = member_of(known, node)
        if member is not None and member.disk == disk and member.role == "voter":
            return not known.is_changing
        if known.is_changing:
            return False
        if member is not None and member.disk == disk:
            _ask(deployment, ChangeIn("promote", node))  # with its leader the second step may be lost
        else:
            place = deployment.cluster.place(node)
            url = deployment.url(node) if node in deployment.spares else place.url
            if member is None:
                _ask(deployment, ChangeIn("add", node, peer=place.peer, url=url, incarnation=incarnation))
            else:
                _ask(deployment, ChangeIn("replace", node, incarnation=incarnation))
        return False

    deployment.cluster.start_node(node)
    _until(is_voter, f"node {node} votes")


def _ask(deployment: Deployment, change: ChangeIn) -> ChangeAnswer | None:
    """Asks once; None if the change was not accepted now, or its outcome is unknown."""
    with SyncClient(_urls(deployment), deadline_s=ASK_S, sessions=False) as client:
        try:
            return client.change_members(change)
        except NotApplied as error:
            if error.problem is not None and error.problem.why in _FINAL:
                raise ChangeFailed(f"{change.change} {change.node} was refused: {error}") from error
        except (ClientError, OSError):
            pass
    return None


def _until(what: Callable[[], T | None], purpose: str) -> T:
    end = time.monotonic() + CHANGE_S
    while not (found := what()):
        if time.monotonic() > end:
            raise ChangeFailed(f"{CHANGE_S:g} s were not enough until {purpose}")
        time.sleep(AGAIN_S)
    return found


def _urls(deployment: Deployment) -> list[str]:
    return [deployment.cluster.url(node) for node in deployment.cluster.running] or deployment.cluster.urls


def _url_of(deployment: Deployment, node: int, advertised: str) -> str:
    return deployment.cluster.url(node) if node in deployment.cluster.nodes else advertised
