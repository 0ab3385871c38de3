"""Whose disk may speak: why a peer's hello is refused and whose promises count; shared by server and simulator.

Identity is not address (promise 8): the configuration names the incarnation of every member's disk, and of any other
disk under that number no vote and no acknowledgement counts; the boot counter only rises, so a lower one than was met
of the same disk is a disk that was rolled back. A program that does not know the cluster version would apply what it
cannot know (pitfall 71): it is told so at the door.
"""

from __future__ import annotations

from raft.configuration import Configuration
from raft.messages import Message, is_promise
from raft.types import NodeId


def refusal(*, sender: NodeId, boot: int, knows: int, node: NodeId, boot_seen: int, version: int) -> str | None:
    """Why `node` cannot take what `sender` says of itself, with the mend; None: it can.

    `boot_seen` is the highest boot counter that this process has met of this disk of the sender, `knows` the newest
    cluster version that the sender knows, `version` the one in force here. A disk that the configuration does not name
    is heard, only not believed: see `is_believed`.
    """
    if sender == node:
        return f"node {sender} is no other member of this cluster: it is this one"
    if boot < boot_seen:
        return (
            f"node {sender} says it was started {boot} times, but {boot_seen} were seen: its data folder is an old copy"
        )
    if knows < version:
        return (
            f"node {sender} knows cluster versions up to {knows}, the cluster is at version {version}: start a newer "
            f"version of raftlog on node {sender}"
        )
    return None


def is_believed(message: Message, incarnation: str, configuration: Configuration) -> bool:
    """Whether a message from a disk of that incarnation counts at a node with this configuration.

    A wiped or foreign disk can promise nothing: it has forgotten what its number promised before. Its requests are
    taken, and so is whatever a node says that the configuration does not name: it may have joined, or got a new disk,
    while this node was down, and lead by now; refused for ever, it could never tell (thesis 4.1: a server takes
    requests of leaders and candidates that it does not know; found by a random walk over changes, seed 56).
    """
    if not is_promise(message):
        return True
    member = configuration.member(message.sender)
    return member is None or member.incarnation == incarnation
