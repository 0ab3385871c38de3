"""Mutants of requests that wait: each leaves a client without an answer until its connection closes."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Edit, Mutant

_REFEREE: Final = "planted by an adversarial review of the rooms"

_SETTLING: Final = (
    "tests/cluster/replica/parts/test_settling.py::test_every_write_is_settled_by_what_became_of_its_place"
)

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
    Mutant(
        name="late_answer_to_a_forward_dropped",
        pitfall=73,
        title="an answer that comes after its entry was applied settles nothing: the client waits for its deadline",
        source="raftlog itself, planted by a review",
        story=_SETTLING,
        target="raftlog.cluster.replica.parts.writes:take_answers",
        old="if late is not None:",
        new="if late is not None and replica.is_leader:",
    ),
    Mutant(
        name="write_at_the_end_of_a_snapshot_waits",
        pitfall=42,
        title="a write in the very entry at which a leader's snapshot ends is not settled by it",
        source="raftlog itself, planted by a review",
        story=_SETTLING,
        target="raftlog.cluster.protocol.proposals:Pending.skipped",
        old="self._batches[0].last <= index",
        new="self._batches[0].last < index",
    ),
    Mutant(
        name="forwarded_write_at_the_end_of_a_snapshot_waits",
        pitfall=42,
        title="the same, for a write that was forwarded",
        source="raftlog itself, planted by a review",
        story=_SETTLING,
        target="raftlog.cluster.protocol.proposals:Pending.skipped",
        old="self._expected[0][0] <= index",
        new="self._expected[0][0] < index",
    ),
    Mutant(
        name="half_of_the_voters_keep_the_log",
        pitfall=34,
        title="a node gives up its copy of the log for a while when half of the voters have it beside this one",
        source="raftlog itself, planted by a review",
        story="tests/cluster/replica/upkeep/test_history_guard.py::"
        "test_a_node_may_lose_its_log_while_a_majority_has_it_without_this_one",
        target="raftlog.cluster.replica.upkeep.history_guard:is_kept_by_others",
        old="majority(len(voters))",
        new="len(voters) / 2",
    ),
)
