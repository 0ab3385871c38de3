"""Whose disk may speak: the rule by which a node refuses a peer's hello; shared by the server and the simulator.

Identity is not address (promise 8): the configuration names the incarnation of every member's disk, so a wiped or
foreign one cannot vote; the boot counter only rises, so a lower one than was met is a disk that was rolled back.
"""

from __future__ import annotations

from raft.configuration import Configuration
from raft.types import NodeId


def refusal(
    *, sender: NodeId, incarnation: str, boot: int, node: NodeId, configuration: Configuration, boot_seen: int
) -> str | None:
    """Why `node` cannot take what `sender` says of itself, with the mend; None: it can.

    `boot_seen` is the highest boot counter that this process has met of the sender.
    """
    if sender == node:
        return f"node {sender} is no other member of this cluster: it is this one"
    # A member that this node's configuration does not name may have joined while this node was down: what it sends is
    # how this node hears of that (thesis 4.1: a server takes requests of leaders and candidates that it does not know).
    member = configuration.member(sender)
    if member is not None and member.incarnation != incarnation:
        return (
            f"node {sender} comes with the disk {incarnation}, the configuration names "
            f"{member.incarnation}: a wiped or foreign data folder cannot vote"
        )
    if boot < boot_seen:
        return (
            f"node {sender} says it was started {boot} times, but {boot_seen} were seen: its data folder is an old copy"
        )
    return None
