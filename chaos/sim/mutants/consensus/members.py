"""Plants mutants of membership: which nodes count, and from when on."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Edit, Mutant

MUTANTS: Final = (
    Mutant(
        name="removed_leader_counts_itself",
        number=12,
        pitfall=45,
        title="a leader that the configuration no longer names counts its own copy",
        source="etcd confchange_v1_remove_leader",
        target="raftlog.raft.consensus.replication:advance_commit",
        old="index = agreed(state.configurations[-1][1], matches)",
        new=(
            "index = agreed(state.configurations[-1][1], matches)\n"
            "    if not state.configuration.is_voter(state.node):\n"
            "        voters = state.configuration.voters\n"
            "        values = sorted([log.persisted, *(matches.get(voter, 0) for voter in voters)])\n"
            "        index = values[-(len(voters) // 2 + 1)]"
        ),
    ),
    Mutant(
        name="learner_refuses_to_vote",
        number=14,
        pitfall=11,
        title="a node that does not know of its promotion yet refuses its vote",
        source="etcd #10998",
        target="raftlog.raft.consensus.election:on_request_vote",
        old="up_to_date = may_grant and state.log.is_up_to_date(message.last_index, message.last_term)",
        new=(
            "up_to_date = may_grant and state.log.is_up_to_date(message.last_index, message.last_term)\n"
            "    up_to_date = up_to_date and state.configuration.is_voter(state.node)"
        ),
        story="tests/raft/consensus/election/test_election.py::test_pitfall_11_a_learner_votes_when_it_is_asked",
    ),
    Mutant(
        name="two_changes_in_flight",
        number=25,
        pitfall=40,
        title="a configuration change is taken while another is not committed",
        source="raft-dev 2015; braft #182",
        target="raftlog.raft.consensus.membership:check_calm",
        old="if index > log.committed or configuration.outgoing or role.next_change is not None:",
        new="if configuration.outgoing or role.next_change is not None:",
    ),
    Mutant(
        name="change_in_force_when_committed",
        number=25,
        pitfall=50,
        title="a configuration is in force at the leader from its append on, at followers from its commit on",
        source="etcd #2397, #7625",
        target="raftlog.raft.consensus.replication:on_append",
        old="        membership.take_effect(state, fresh)\n",
        new="",
        also=(
            Edit(
                "raftlog.raft.consensus.replication:on_append",
                "    log.committed = max(commit, log.committed)\n",
                "    committed = [entry for entry in log.entries if log.committed < entry.index <= commit]\n"
                "    membership.take_effect(state, committed)\n"
                "    log.committed = max(commit, log.committed)\n",
            ),
        ),
    ),
    Mutant(
        name="change_before_the_first_own_commit",
        pitfall=40,
        title="a new leader changes the members before it has committed in its term",
        source="raft-dev 2015; hydro #3192; axon-server #120",
        target="raftlog.raft.consensus.membership:check_calm",
        old="if log.term_at(log.committed) != state.term:",
        new="if log.committed < 0:",
    ),
    Mutant(
        name="change_not_rolled_back",
        pitfall=41,
        title="a configuration stays in force although its entry was cut",
        source="canonical/raft #250",
        target="raftlog.raft.consensus.replication:_cut",
        old="    membership.roll_back(state, replacement.before)\n",
        new="",
        story="tests/raft/consensus/members/test_membership.py::test_a_cut_brings_the_configuration_before_back",
    ),
    Mutant(
        name="joint_configuration_counted_as_one",
        pitfall=44,
        title="of a joint configuration only the new majority is asked",
        source="openraft d882e743, a10d9906",
        target="raftlog.raft.quorum:agreed",
        old="(configuration.voters, configuration.outgoing) if configuration.outgoing else (configuration.voters,)",
        new="(configuration.voters,)",
    ),
)
