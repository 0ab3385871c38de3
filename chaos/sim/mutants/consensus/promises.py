"""Mistakes about promises that a disk lost: what peers remember, the floor while a node runs, and when it heals."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Edit, Mutant

_SOURCE: Final = "this project: docs/decisions/0017"
_NO_PROCESS: Final = "tests/sim/disk/test_promises.py::test_no_process_remembers_and_the_disk_of_a_peer_does"
_STARTED: Final = "tests/raft/consensus/test_recall_started.py::test_"
_TESTS: Final = "tests/raft/consensus/test_recall.py::test_"

MUTANTS: Final = (
    Mutant(
        name="promises_forgotten_with_the_role",
        pitfall=66,
        title="a leader forgets what followers acknowledged when it stops leading, and a rolled-back disk is believed",
        source=_SOURCE,
        story=f"{_TESTS}a_leaders_memory_outlives_its_leadership",
        edits=(
            Edit(
                "raftlog.raft.consensus.state:become_follower",
                "    state.out.events.append(BecameFollower(term, leader, reason))",
                "    state.memories.clear()\n    state.out.events.append(BecameFollower(term, leader, reason))",
            ),
        ),
    ),
    Mutant(
        name="progress_kept_for_a_new_process",
        pitfall=23,
        title="a leader believes the match of a follower's process that has ended since",
        source=_SOURCE,
        story=f"{_TESTS}a_new_process_of_a_follower_begins_with_nothing_proved",
        edits=(
            Edit(
                "raftlog.raft.consensus.recall:link_opened",
                "progress.run != start.run",
                "progress.run == start.run + 1",
            ),
        ),
    ),
    Mutant(
        name="floor_lifted_before_everything_is_back",
        pitfall=66,
        title="a leader reports a node as whole once it has the entries that were committed when it connected",
        source=_SOURCE,
        story=f"{_TESTS}a_floor_is_lifted_only_with_all_that_the_leader_had",
        edits=(
            Edit(
                "raftlog.raft.consensus.recall:reset",
                "progress.heal_at = state.log.last.index",
                "progress.heal_at = state.log.applied",
            ),
        ),
    ),
    Mutant(
        name="running_floor_not_durable",
        pitfall=66,
        title="a node that hears of lost promises goes under a floor, but does not write the floor to its disk",
        source=_SOURCE,
        story=f"{_TESTS}a_floor_is_durable_before_anything_is_promised",
        edits=(
            Edit(
                "raftlog.raft.consensus.recall:_go_under_floor",
                "    state.out.hard_state = True\n",
                "",
            ),
        ),
    ),
    Mutant(
        name="equal_boot_of_another_run_accepted",
        pitfall=46,
        title="two processes with one boot counter are both believed: a clone, or an old copy that was started again",
        source=_SOURCE,
        story="tests/raft/test_hello.py::test_a_clone_of_a_running_node_is_refused",
        edits=(Edit("raftlog.raft.hello:refusal", "run != met.run", "run == met.run + (1 << 60)"),),
    ),
    Mutant(
        name="hint_below_match_probed_at_once",
        pitfall=25,
        title="a follower that rejects what it acknowledged is asked again in the same turn, without end",
        source=_SOURCE,
        story=f"{_TESTS}a_follower_that_rejects_acknowledged_entries_is_asked_once_a_heartbeat",
        edits=(
            Edit(
                "raftlog.raft.consensus.recall:doubt",
                "    progress.is_waiting = True\n    if not",
                "    progress.is_waiting = False\n    if not",
            ),
            Edit("raftlog.raft.consensus.recall:doubt", "elif message.round >= progress.doubted_in:", "elif False:"),
        ),
    ),
    Mutant(
        name="lost_promises_not_compared",
        number=0,
        pitfall=66,
        title="a started node does not compare what its peers remember with its last durable index",
        source=_SOURCE,
        edits=(
            Edit(
                "raftlog.raft.consensus.recall:on_reply",
                "is_kept = acked <= max(durable, state.kept) and message.promised_term <= state.kept_term",
                "is_kept = True",
            ),
        ),
    ),
    Mutant(
        name="hard_state_behind_the_log_begun_with",
        number=0,
        pitfall=66,
        title="a start takes a hard state that knows less than the log: a disk lied about its sync",
        source="raftlog until issue 19: the simulator's lying sync, seed 4",
        story="tests/raft/wal/test_opening.py::"
        "test_a_log_of_a_newer_term_than_the_hard_state_shows_that_promises_were_lost",
        edits=(Edit("raftlog.raft.wal.opening:_open", "if last_term > slot.state.term:", "if last_term < 0:"),),
    ),
    Mutant(
        name="votes_before_peers_were_asked",
        pitfall=66,
        title="a started node votes before its peers could report that its disk lost promises",
        source=_SOURCE,
        story=f"{_TESTS}a_started_node_votes_once_the_voters_have_reported_their_memory",
        edits=(Edit("raftlog.raft.consensus.recall:is_waiting", "if not state.run:", "if True:"),),
    ),
    Mutant(
        name="acknowledges_before_peers_were_asked",
        pitfall=66,
        title="a started node, whose disk lost its vote for a newer leader, acknowledges entries to the one before",
        source="this project, until a review found it",
        story="tests/sim/disk/test_promises.py::"
        "test_a_rolled_back_node_commits_nothing_with_the_leader_before_the_one_that_it_elected",
        edits=(Edit("raftlog.raft.consensus.replication:on_append", "if recall.is_waiting(state):", "if False:"),),
    ),
    Mutant(
        name="takes_over_before_peers_were_asked",
        pitfall=66,
        title="a started node, whose disk lost its vote, campaigns in that term because a leader hands over",
        source="this project, until a review found it",
        story=f"{_STARTED}a_started_node_acknowledges_nothing_before_the_voters_have_reported_their_memory",
        edits=(
            Edit(
                "raftlog.raft.consensus.election:on_timeout_now",
                "not (state.may_campaign and recall.may_campaign(state))",
                "not state.may_campaign",
            ),
        ),
    ),
    Mutant(
        name="terms_of_restarted_peers_not_entered",
        pitfall=2,
        title="a rolled-back node votes twice in a term: the peer that remembered the first vote was started again",
        source="this project, until a review found it",
        story=f"{_STARTED}a_started_node_votes_for_no_other_node_in_a_term_that_a_peer_began_in",
        edits=(Edit("raftlog.raft.consensus.recall:link_opened", "if is_waiting(state):", "if False:"),),
    ),
    Mutant(
        name="committed_entries_not_reported",
        pitfall=66,
        title="a restarted peer does not report to a rolled-back node which entries are committed",
        source="this project, until a review found it",
        story=_NO_PROCESS,
        edits=(
            Edit(
                "raftlog.raft.consensus.recall:_committed",
                "if state.configuration.is_voter(state.node) else",
                "if False else",
            ),
        ),
    ),
    Mutant(
        name="effects_show_no_commit",
        pitfall=66,
        title="a start forgets which entries were committed, though their effects are on the disk",
        source="this project, until a review found it",
        story=_NO_PROCESS,
        edits=(Edit("raftlog.cluster.replica.opening:open_state", "commit=recovered.committed", "commit=mark.index"),),
    ),
    Mutant(
        name="what_was_acknowledged_to_a_leader_is_not_remembered",
        pitfall=66,
        title="a leader's own disk is rolled back, and its followers do not report what it acknowledged",
        source=_SOURCE,
        story=f"{_TESTS}a_rolled_back_leader_learns_the_acknowledgements_of_others",
        edits=(Edit("raftlog.raft.consensus.recall:led", "if state.log.term_at(match) == state.term:", "if False:"),),
    ),
    Mutant(
        name="acknowledgements_of_a_learner_are_remembered",
        pitfall=66,
        title="a leader that restarts waits for ever for a log that only a learner has, and no node leads",
        source="this project, until simulator seed 640609 of the commit of that day showed it",
        story=f"{_TESTS}a_restarted_leader_waits_for_no_log_that_only_a_learner_has",
        edits=(
            Edit(
                "raftlog.raft.consensus.recall:led", "if state.configurations[-1][1].is_voter(state.node):", "if True:"
            ),
        ),
    ),
    Mutant(
        name="differing_log_rejected_without_end",
        pitfall=25,
        title="a follower rejects for ever what its leader puts behind an entry that differs, and says nothing more",
        source="this project, until it was fixed",
        story="tests/raft/consensus/replication/test_replication_edges.py::"
        "test_a_follower_whose_log_differs_says_so_after_a_bounded_number_of_rejections",
        edits=(
            Edit(
                "raftlog.raft.consensus.replication:_count_rejection",
                "role.rejections == CHAIN_REJECTIONS_MAX",
                "False",
            ),
        ),
    ),
    Mutant(
        name="node_goes_on_though_its_log_differs",
        pitfall=25,
        title="a node hears that its log differs from its leader's, and goes on without taking any entry",
        source="this project, until it was fixed",
        story="tests/cluster/replica/parts/test_log_differs.py::test_a_node_whose_log_differs_ends_for_damage",
        edits=(Edit("raftlog.cluster.replica.status:tell_events", "if isinstance(event, LogDiffers):", "if False:"),),
    ),
)
