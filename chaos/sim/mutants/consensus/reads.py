"""Mutants of reads."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Mutant

MUTANTS: Final = (
    Mutant(
        name="read_answered_after_losing_leadership",
        number=9,
        pitfall=33,
        title="a read index from before a leader change is answered all the same",
        source="etcd #20418",
        target="raftlog.raft.consensus.state:_leave_leadership",
        old=(
            "failed = [ReadFailed(context) for opened in role.reads_open for context in opened.contexts]\n"
            "    state.out.reads_failed += failed"
        ),
        new=(
            "state.out.reads += [\n"
            "        ReadReady(context, opened.read_index)\n"
            "        for opened in role.reads_open for context in opened.contexts\n"
            "    ]"
        ),
    ),
    Mutant(
        name="read_round_number_used_again",
        number=9,
        pitfall=33,
        title="a read asked again after a pause takes the late answer of its first round",
        source="etcd #20418, PR #21399",
        target="raftlog.cluster.protocol.waiters:Reads.start",
        old="self._number += 1",
        new="self._number += bool(self._rounds)",
    ),
    Mutant(
        name="read_without_a_round",
        number=10,
        pitfall=35,
        title="a leader answers reads from its commit index, a lease in disguise",
        source="Consul 2014",
        target="raftlog.raft.consensus.reads:confirm",
        old="confirmed = agreed(state.configuration, rounds)",
        new="confirmed = role.round",
    ),
    Mutant(
        name="read_before_the_first_own_commit",
        number=26,
        pitfall=32,
        title="a new leader serves reads before it has committed in its term",
        source="etcd #7331",
        target="raftlog.raft.consensus.reads:open_round",
        old="if not role.reads_new or log.term_at(log.committed) != state.term:",
        new="if not role.reads_new:",
    ),
    Mutant(
        name="read_confirmed_by_a_minority",
        pitfall=34,
        title="one echo less than a majority confirms a read",
        source="openraft d60f1e85",
        target="raftlog.raft.consensus.reads:confirm",
        old="confirmed = agreed(state.configuration, rounds)",
        new=(
            "echoes = sorted(rounds.get(voter, 0) for voter in state.configuration.voters)\n"
            "    confirmed = echoes[-max(1, len(echoes) // 2)]"
        ),
    ),
)
