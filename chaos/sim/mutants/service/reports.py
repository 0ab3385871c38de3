"""Plants mutants of tables of peers' reports that depend on their order, and of answers that do not come."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Mutant

_SOURCE: Final = "raftlog itself, planted by a review"
_ORDER: Final = "tests/cluster/protocol/test_order.py::test_"

MUTANTS: Final = (
    Mutant(
        name="later_report_lowers_an_earlier_one",
        pitfall=66,
        title="a node under a floor takes the newest report of a lost promise, not the highest",
        source=_SOURCE,
        story=f"{_ORDER}a_started_node_stands_the_same_whatever_the_order_of_its_peers_memories",
        target="raftlog.raft.consensus.recall:_go_under_floor",
        old="max(acked, state.reported or (0, 0))",
        new="acked",
    ),
    Mutant(
        name="older_promise_takes_the_place_of_a_newer_one",
        pitfall=66,
        title="a memory keeps the promise that was noted last, not the newest one",
        source=_SOURCE,
        story=f"{_ORDER}a_memory_of_a_disk_only_rises_whatever_the_order_of_its_promises",
        target="raftlog.raft.consensus.state:Memory.note",
        old="max(self.acked_now, (term, index))",
        new="(term, index)",
    ),
    Mutant(
        name="equal_voters_chosen_by_their_order",
        pitfall=10,
        title="of two equally good voters a leader hands over to the one that it happens to look at first",
        source=_SOURCE,
        story=f"{_ORDER}a_leader_decides_the_same_about_disks_whatever_the_order_of_the_reports",
        target="raftlog.cluster.protocol.disk_reports:Disks.best",
        old=", -each.node)",
        new=")",
    ),
    Mutant(
        name="lost_answer_to_a_read_waited_for",
        pitfall=33,
        title="a follower waits for a read index until the deadline, though the leader's answer was lost on the way",
        source="raftlog itself, found by the simulator's reads at every node",
        target="raftlog.cluster.protocol.waiters:Reads.overdue",
        old="self.again(number)",
        new="pass",
    ),
    Mutant(
        name="status_silent_about_full_disks",
        pitfall=61,
        title="the status of a cluster whose full disks refuse every write says nothing of it",
        source="this project, until a stranger's first week",
        story="tests/cluster/cli/test_explain.py::test_status_says_what_explain_would_say_first",
        target="raftlog.cluster.api.diagnosis:trouble_of",
        old="if cause.code not in _PASSING",
        new="if cause.code not in _PASSING and cause.code != 'disk_full'",
    ),
)
