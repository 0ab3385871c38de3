"""Mutants of terms, votes and elections."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Edit, Mutant

MUTANTS: Final = (
    Mutant(
        name="vote_answered_before_it_is_durable",
        number=2,
        pitfall=1,
        title="the vote is answered at once, and reaches the disk later",
        source="raft-java #57",
        target="raftlog.raft.consensus.election:on_request_vote",
        old="state.out.after_sync.append(_reply(state, message, granted=granted))",
        new="state.out.messages.append(_reply(state, message, granted=granted))",
    ),
    Mutant(
        name="vote_never_written",
        number=2,
        pitfall=1,
        title="the vote is remembered in memory only",
        source="raft-java #57; barge #5",
        target="raftlog.raft.consensus.election:on_request_vote",
        old="state.vote = message.sender\n        state.out.hard_state = True",
        new="state.vote = message.sender",
    ),
    Mutant(
        name="term_and_vote_in_two_writes",
        number=3,
        title="term and vote reach the disk in two writes, the vote first",
        source="hashicorp/raft #661",
        target="raftlog.raft.wal.journal:Journal.set_hard_state",
        old=(
            "self.slot = Slot(self.slot.sequence + 1, state, cut, replaced=replaced or self.slot.replaced)\n"
            "    return keep_slot(self.log, self.slot)"
        ),
        new=(
            "half = HardState(self.slot.state.term, state.vote, state.boot)\n"
            "    first = keep_slot(self.log, Slot(self.slot.sequence + 1, half, cut))\n"
            "    self.slot = Slot(self.slot.sequence + 2, state, cut)\n"
            "    promise, repeat = keep_slot(self.log, self.slot)\n"
            "    return first[0] + promise, repeat"
        ),
    ),
    Mutant(
        name="term_and_vote_reset_at_restart",
        number=4,
        pitfall=1,
        title="a restarted node knows only the term of its log, and no vote",
        source="PySyncObj #202",
        target="raftlog.raft.consensus.core:RaftCore.__init__",
        old="term=hard_state.term, vote=hard_state.vote,",
        new="term=log.last.term, vote=NOBODY,",
        also=(
            Edit(
                "raftlog.raft.consensus.core:RaftCore.__init__",
                "become_follower(self.state, hard_state.term,",
                "become_follower(self.state, log.last.term,",
            ),
            Edit(
                "raftlog.raft.consensus.core:RaftCore.__init__",
                "durable_term=hard_state.term",
                "durable_term=log.last.term",
            ),
        ),
    ),
    Mutant(
        name="vote_cleared_on_stepping_down",
        number=5,
        pitfall=3,
        title="stepping down within a term forgets its vote",
        source="CCF #5891",
        target="raftlog.raft.consensus.state:become_follower",
        old="if term > state.term:",
        new="if term >= state.term:",
    ),
    Mutant(
        name="vote_cleared_by_pre_vote",
        number=6,
        title="asking for pre-votes forgets the vote of the term",
        source="CCF",
        target="raftlog.raft.consensus.state:become_pre_candidate",
        old="deadline_ms = state.now.monotonic_ms",
        new="state.vote = NOBODY\n    deadline_ms = state.now.monotonic_ms",
    ),
    Mutant(
        name="no_pre_vote",
        number=11,
        pitfall=9,
        title="a follower that hears no leader campaigns at once",
        source="Howard 2020; Cloudflare 2020",
        target="raftlog.raft.consensus.election:pre_campaign",
        old=(
            "become_pre_candidate(state, reason, link_closed=link_closed)\n"
            "    _ask(state, pre=True, link_closed=link_closed)\n"
            "    _count(state)"
        ),
        new="campaign(state, reason, link_closed=link_closed)",
    ),
    Mutant(
        name="no_check_quorum",
        number=11,
        pitfall=9,
        title="a leader that no majority answers stays",
        source="Howard 2020; Cloudflare 2020",
        target="raftlog.raft.consensus.election:_tick_leader",
        old="if now_ms - heard_ms > options.election_timeout_max_ms:",
        new="if now_ms < heard_ms:",
    ),
    Mutant(
        name="vote_by_index_only",
        number=17,
        pitfall=5,
        title="the longer log wins the vote, whatever its term",
        source="openraft a48a3282",
        target="raftlog.raft.consensus.log:Log.is_up_to_date",
        old="(last_term, last_index) >= (self.last.term, self.last.index)",
        new="last_index >= self.last.index",
    ),
    Mutant(
        name="vote_by_term_only",
        number=17,
        pitfall=5,
        title="the newer last term wins the vote, whatever the length",
        source="openraft a48a3282",
        target="raftlog.raft.consensus.log:Log.is_up_to_date",
        old="(last_term, last_index) >= (self.last.term, self.last.index)",
        new="last_term >= self.last.term",
    ),
    Mutant(
        name="vote_without_looking_at_the_log",
        pitfall=5,
        title="the vote goes to the candidate that asks first",
        source="raft paper 5.4.1",
        target="raftlog.raft.consensus.log:Log.is_up_to_date",
        old="(last_term, last_index) >= (self.last.term, self.last.index)",
        new="True",
    ),
    Mutant(
        name="votes_counted_by_reply",
        pitfall=4,
        title="a doubled grant counts twice",
        source="PySyncObj; raftos; coyote-samples #8",
        target="raftlog.raft.consensus.election:on_vote_reply",
        old="role.votes[message.sender] = message.granted",
        new=(
            "if message.sender in role.votes and message.granted:\n"
            "        others = [peer for peer in state.configuration.voters if peer not in role.votes]\n"
            "        role.votes.update({peer: True for peer in others[:1]})\n"
            "    role.votes[message.sender] = message.granted"
        ),
    ),
    Mutant(
        name="repeated_vote_request_refused",
        pitfall=6,
        title="a candidate whose grant was lost is refused when it asks again",
        source="nebula #2419",
        target="raftlog.raft.consensus.election:on_request_vote",
        old="(state.vote == message.sender or (state.vote == NOBODY and state.leader == NOBODY))",
        new="state.vote == NOBODY and state.leader == NOBODY",
        story="tests/raft/consensus/election/test_election.py::test_pitfall_06_a_repeated_request_gets_the_same_grant",
    ),
    Mutant(
        name="any_vote_granted_again",
        pitfall=1,
        title="a second candidate of the term gets a vote too",
        source="raft paper 5.2",
        target="raftlog.raft.consensus.election:on_request_vote",
        old="(state.vote == message.sender or (state.vote == NOBODY and state.leader == NOBODY))",
        new="state.leader == NOBODY",
        also=(Edit("raftlog.raft.consensus.election:on_request_vote", "granted and state.vote == NOBODY", "granted"),),
    ),
    Mutant(
        name="pre_vote_raises_the_term",
        pitfall=7,
        title="a pre-vote request moves the receiver into its term",
        source="salt PR #69087",
        target="raftlog.raft.consensus.core:_meet_term",
        old="if isinstance(message, RequestVote) and message.pre:\n        return True",
        new=(
            "if isinstance(message, RequestVote) and message.pre and message.term <= state.term:\n        return True"
        ),
    ),
    Mutant(
        name="closed_link_taken_for_a_dead_leader",
        pitfall=10,
        title="a follower asks for votes 0 to 40 ms after its leader's link closed, whether or not it can be dialled",
        source="this project, until it was fixed",
        target="raftlog.raft.consensus.links:closed",
        old="late_ms + state.random(options.link_closed_delay_min_ms, options.link_closed_delay_max_ms)",
        new="state.random(0, 40)",
    ),
    Mutant(
        name="refused_dial_believed_alone",
        pitfall=10,
        title="a follower whose dial was refused asks for votes, though its links to other voters closed as well",
        source="found in this project",
        target="raftlog.raft.consensus.election:_is_leader_gone",
        old="return role.link_closed and outcome(state.configuration, reached) is VoteOutcome.WON",
        new="return role.link_closed and bool(reached)",
        story="tests/raft/scripts/link_closed_short_break_of_all_links_unseats_no_leader.txt",
    ),
    Mutant(
        name="pre_candidates_grant_each_other",
        pitfall=12,
        title="two followers of a killed leader that ask at the same time grant each other, and split the votes",
        source="this project, until it was fixed",
        target="raftlog.raft.consensus.election:_goes_first",
        old="state.node < message.sender and",
        new="False and",
        story="tests/raft/consensus/test_links.py::test_of_two_simultaneous_candidates_only_the_lower_number_is_granted",
    ),
    Mutant(
        name="split_vote_waits_for_a_timeout",
        pitfall=12,
        title="a candidate whose votes were split waits for an election timeout",
        source="raft paper 5.2",
        target="raftlog.raft.consensus.election:_count",
        old="role.deadline_ms = min(role.deadline_ms, state.now.monotonic_ms + delay_ms)",
        new="pass",
        story="tests/sim/world/test_failover.py::test_followers_that_ask_at_the_same_time_do_not_wait_for_a_timeout",
    ),
    Mutant(
        name="leader_silent_when_a_link_opens",
        pitfall=10,
        title="a leader whose link opens again says nothing until its next heartbeat",
        source="this project, until it was fixed",
        target="raftlog.raft.consensus.links:opened",
        old="replication.heartbeat_to(state, role, peer, progress)",
        new="pass",
        story="tests/raft/scripts/link_closed_short_break_of_all_links_unseats_no_leader.txt",
    ),
    Mutant(
        name="started_node_waits_for_a_silent_peer",
        pitfall=72,
        title="a started node gives no vote until every connected peer has answered, also one that stands still",
        source="this project: docs/decisions/0017",
        target="raftlog.raft.consensus.recall:is_waiting",
        old="if waited_ms >= PATIENCE_TIMEOUTS * options.election_timeout_max_ms:",
        new="if False:",
    ),
    Mutant(
        name="leader_with_a_hanging_disk_stays",
        pitfall=72,
        title="a leader whose disk hangs neither hands over nor falls silent, so its followers elect no other node",
        source="this project: docs/decisions/0018",
        target="raftlog.cluster.replica.parts.disk_exchange:watch_stall",
        old="is_stalled = stalled_ms > replica.settings.limits.disk_stall_ms",
        new="is_stalled = False",
    ),
    Mutant(
        name="hanging_disk_not_watched",
        pitfall=72,
        title="the periodic jobs do not look whether the disk hangs",
        source="this project: docs/decisions/0018",
        target="raftlog.cluster.replica.housekeeping:housekeeping",
        old="disk_exchange.watch_stall(replica, now)",
        new="pass",
    ),
)
