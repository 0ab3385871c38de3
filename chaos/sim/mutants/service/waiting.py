"""Mutants of requests that wait: each leaves a client without an answer until its connection closes."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Edit, Mutant

_REFEREE: Final = "planted by an adversarial review of the rooms"

MUTANTS: Final = (
    Mutant(
        name="readers_of_failed_rounds_forgotten",
        pitfall=86,
        title="linearizable reads whose round of heartbeats failed with the leadership are never answered",
        source=_REFEREE,
        target="raftlog.cluster.replica.parts.reads:finish_reads",
        old="in ready.reads_failed:",
        new="in ready.reads[:0]:",
        also=(Edit("raftlog.cluster.protocol.waiters:Reads.expire", "in list(self._rounds.items()):", "in ():"),),
    ),
    Mutant(
        name="readers_of_an_index_never_expire",
        pitfall=86,
        title="a linearizable read at a follower that is cut off before it has the entries is never answered",
        source="found by the simulator, seed 30 of 20 s",
        target="raftlog.cluster.protocol.waiters:IndexWaiters.expire",
        old="if now < self._due and",
        new="if",
    ),
    Mutant(
        name="queued_writes_never_expire",
        pitfall=86,
        title="a write that finds no leader stays in the queue, beyond its deadline, until there is one",
        source=_REFEREE,
        target="raftlog.cluster.protocol.proposals:Pending.expire",
        old="if self._queue_deadline_min <= now:",
        new="if self._queue_deadline_min < 0:",
    ),
    Mutant(
        name="forwarded_writes_never_expire",
        pitfall=86,
        title="a write that was forwarded to a leader that forgot it is never answered",
        source=_REFEREE,
        target="raftlog.cluster.protocol.proposals:Pending.expire",
        old="if flight.deadline_min <= now:",
        new="if flight.deadline_min < 0:",
    ),
)
