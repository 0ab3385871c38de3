"""When a node applies what is committed: at once where somebody waits for it, else behind what a leader waits for.

Plain functions on `Node`. Applying a batch takes a follower as long as making the next one durable does, and both need
the interpreter: applied first, every batch would be acknowledged so much later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cluster import clock

if TYPE_CHECKING:
    from cluster.node import Node

DELAY_S: Final = 0.005
"""A sync that takes longer delays no more what can be applied."""


def apply_due(node: Node) -> bool:
    """Applies for a slice of time, unless the end of the sync that is under way brings another turn for it. Whether the
    core got something to do: what was read from the disk meanwhile."""
    return _is_due(node) and _run(node)


def _is_due(node: Node) -> bool:
    return (
        not node.syncer.is_busy
        or node.is_leader
        or node.pending.inflight > 0
        or len(node.applier.waiters) > 0
        or clock.monotonic() - node.syncer.started >= DELAY_S
    )


def _run(node: Node) -> bool:
    inflight = node.pending.inflight
    if not node.applier.run():
        return False
    node.core.applied(node.applier.applied)
    node.writes_gather.answered(inflight - node.pending.inflight, node.pending.queued)
    node.look_soon()  # behind the answers: those who got them are counted on to ask again
    log = node.core.state.log
    return node.fetches.release() or log.given < min(log.committed, log.persisted)
