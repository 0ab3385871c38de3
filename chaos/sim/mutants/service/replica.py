"""Mutants of the node around the core: what it sends when, what it answers, and what it keeps in memory."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Edit, Mutant

_REFEREE: Final = "planted by an outside referee"
_OWN: Final = "planted by an adversarial review of the rooms"

MUTANTS: Final = (
    Mutant(
        name="replica_sends_before_its_sync",
        number=0,
        pitfall=62,
        title="the server sends at once what must wait for its fsync",
        source=_REFEREE,
        story="tests/cluster/replica/test_promises.py::test_an_acknowledgement_waits_for_the_followers_own_sync",
        edits=(
            Edit(
                "raftlog.cluster.replica.replica:Replica._take_readies",
                "if ready.messages:\n            self._send(ready.messages)",
                "self._send(ready.messages + ready.messages_after_sync)",
            ),
        ),
    ),
    Mutant(
        name="late_place_taken_for_overwritten",
        number=0,
        pitfall=75,
        title="the place of a forwarded write that comes after the next leader's first entry counts as overwritten",
        source=_REFEREE,
        story="tests/cluster/protocol/test_proposals.py::test_a_place_that_comes_after_the_next_leaders_first_entry_is_looked_up",
        edits=(
            Edit(
                "raftlog.cluster.protocol.proposals:Pending.answered",
                "if request.last <= self._applied[0]:",
                "if request.last <= self._applied[0] and term >= self._applied[1]:",
            ),
        ),
    ),
    Mutant(
        name="write_of_a_lost_leader_told_as_overwritten",
        number=0,
        pitfall=75,
        title="writes forwarded to a leader that was deposed count as overwritten",
        source=_REFEREE,
        story="tests/cluster/protocol/test_proposals.py::test_a_lost_link_leaves_unanswered_requests_unknown_and_answered_ones_waiting",
        edits=(Edit("raftlog.cluster.protocol.proposals:Pending.link_lost", "Code.LEADER_LOST", "Code.OVERWRITTEN"),),
    ),
    Mutant(
        name="write_covered_by_a_snapshot_told_as_overwritten",
        number=0,
        pitfall=75,
        title="a write whose place a leader's snapshot covers counts as overwritten",
        source=_REFEREE,
        story="tests/cluster/protocol/test_proposals.py::test_requests_covered_by_a_snapshot_are_unknown_and_later_ones_wait",
        edits=(
            Edit(
                "raftlog.cluster.protocol.proposals:Pending.skipped",
                "[3]\n        self.fail(request, Code.LEADER_LOST",
                "[3]\n        self.fail(request, Code.OVERWRITTEN",
            ),
        ),
    ),
    Mutant(
        name="recent_entries_survive_an_install",
        number=0,
        pitfall=31,
        title="entries kept in memory survive the installation of a snapshot: a reader skips what it covers",
        source=_REFEREE,
        story="tests/cluster/replica/log/test_applier.py::test_a_reader_skips_nothing_over_an_installed_snapshot",
        edits=(
            Edit(
                "raftlog.cluster.replica.log.applier:Applier.installed",
                "self.recent = Recent(self._limits.recent_bytes_max)",
                "pass",
            ),
        ),
    ),
    # -- planted by an adversarial review of the rooms
    Mutant(
        name="forwarded_write_gets_anothers_effect",
        number=0,
        pitfall=76,
        title="a forwarded write in an entry with several writes gets the effect of the first one",
        source=_OWN,
        story="tests/cluster/replica/test_replica.py::test_each_request_gets_its_own_effect",
        edits=(
            Edit(
                "raftlog.cluster.protocol.proposals:Pending._applied_expected",
                "else effects.requests[position]",
                "else effects.requests[0]",
            ),
        ),
    ),
    Mutant(
        name="joined_repetitions_forgotten_with_a_refused_proposal",
        number=0,
        pitfall=73,
        title="a repetition that waits behind its first one is forgotten when the core refuses the entry",
        source=_OWN,
        story="tests/cluster/protocol/test_proposals.py::test_requests_that_could_not_be_proposed_wait_again_in_order",
        edits=(
            Edit(
                "raftlog.cluster.protocol.proposals:Pending.put_back",
                "again = [request, *(request.joined or ())]",
                "again = [request]",
            ),
        ),
    ),
    Mutant(
        name="other_bytes_join_a_sequence",
        number=0,
        pitfall=76,
        title="another request under a sequence that is proposed gets the answer of the first",
        source=_OWN,
        story="tests/cluster/protocol/test_proposals.py::test_other_bytes_under_the_same_sequence_do_not_join",
        edits=(
            Edit(
                "raftlog.cluster.protocol.proposals:Pending._joins",
                "primary is request or primary.block[BLOCK_SIZE:] != request.block[BLOCK_SIZE:]",
                "primary is request",
            ),
        ),
    ),
    Mutant(
        name="forwarded_writes_kept_by_a_follower",
        number=0,
        pitfall=83,
        title="a node that lost the leadership passes forwarded writes on a second time",
        source=_OWN,
        story="tests/cluster/replica/parts/test_requests.py::test_a_forwarded_write_is_not_passed_on_a_second_time",
        edits=(
            Edit(
                "raftlog.cluster.replica.parts.writes:propose_or_forward",
                'replica.writes.pending.refuse_forwarded(f"{replica.name} does not lead any more")',
                "pass",
            ),
        ),
    ),
    Mutant(
        name="read_answered_before_its_index_is_applied",
        number=0,
        pitfall=32,
        title="a linearizable read is answered as soon as its index is known, applied or not",
        source=_OWN,
        story="tests/cluster/replica/parts/test_requests.py::test_a_read_waits_until_its_index_is_applied",
        edits=(
            Edit(
                "raftlog.cluster.replica.parts.reads:_release_readers",
                "is_applied = replica.applier.applied >= index",
                "is_applied = True",
            ),
        ),
    ),
    Mutant(
        name="failed_read_round_answered_from_the_commit_index",
        number=0,
        pitfall=78,
        title="a read round that a deposed leader could not confirm is answered from its commit index",
        source=_OWN,
        story="tests/cluster/replica/parts/test_requests.py::test_a_read_round_that_was_not_confirmed_answers_no_reader",
        edits=(
            Edit(
                "raftlog.cluster.replica.parts.reads:finish_reads",
                "answer_read(replica, *contexts.pop(failed.context), 0)",
                "answer_read(replica, *contexts.pop(failed.context), replica.core.state.log.committed)",
            ),
        ),
    ),
    Mutant(
        name="wait_for_an_index_ends_as_reached",
        number=0,
        pitfall=39,
        title="a read that waits for an index is answered at its deadline from an older state",
        source=_OWN,
        story="tests/cluster/replica/test_replica.py::test_long_polls_wake_for_their_own_index",
        edits=(
            Edit(
                "raftlog.cluster.replica.parts.reads:wait_for",
                "except TimeoutError:\n        return False",
                "except TimeoutError:\n        return True",
            ),
        ),
    ),
    Mutant(
        name="waiters_of_an_installed_index_not_woken",
        number=0,
        pitfall=54,
        title="a snapshot that covers an index does not wake the requests that wait for it",
        source=_OWN,
        story="tests/cluster/replica/log/test_applier.py::test_a_waiter_for_an_index_in_a_snapshot_is_woken",
        edits=(
            Edit(
                "raftlog.cluster.replica.log.applier:Applier.installed",
                "self.waiters.applied(mark.index)",
                "pass",
            ),
        ),
    ),
    Mutant(
        name="last_user_index_kept_over_an_install",
        number=0,
        pitfall=54,
        title="the last user index stays the old one when a snapshot is installed",
        source=_OWN,
        story="tests/cluster/replica/log/test_applier.py::test_a_reader_skips_nothing_over_an_installed_snapshot",
        edits=(
            Edit(
                "raftlog.cluster.replica.log.applier:Applier.installed",
                "self.last_user_index = last_user",
                "pass",
            ),
        ),
    ),
    Mutant(
        name="effects_count_as_written_before_they_are",
        number=0,
        pitfall=59,
        title="effects count as written as soon as their entry is applied",
        source=_OWN,
        story="tests/cluster/replica/log/test_applier.py::test_effects_count_as_written_when_their_own_write_is_done",
        edits=(
            Edit(
                "raftlog.cluster.replica.log.applier:Applier._taken",
                "self.written = max(self.written, last)",
                "self.written = self.applied",
            ),
        ),
    ),
    Mutant(
        name="waiter_woken_one_record_late",
        number=0,
        pitfall=80,
        title="a request that waits for an index is woken by the record after it",
        source=_OWN,
        story="tests/cluster/replica/log/test_applier.py::test_a_waiter_for_an_index_in_a_snapshot_is_woken",
        edits=(
            Edit(
                "raftlog.cluster.protocol.waiters:IndexWaiters.applied",
                "heap[0][0] <= index",
                "heap[0][0] < index",
            ),
        ),
    ),
    Mutant(
        name="waiting_writes_forgotten_by_an_install",
        number=0,
        pitfall=30,
        title="the writes that wait while a snapshot is installed get no answer",
        source=_OWN,
        story="tests/cluster/replica/upkeep/test_snapshot_work.py::test_an_installed_snapshot_reaches_core_applier_and_waiting_writes",
        edits=(
            Edit(
                "raftlog.cluster.replica.upkeep.snapshots:_install",
                "replica.writes.pending.skipped(mark.index, mark.term)",
                "pass",
            ),
        ),
    ),
    Mutant(
        name="log_compacted_under_a_snapshot_that_is_sent",
        number=0,
        pitfall=57,
        title="a leader drops the log behind the snapshot that a follower is just given",
        source=_OWN,
        story="tests/cluster/replica/upkeep/test_snapshot_work.py::test_a_saved_snapshot_keeps_the_log_behind_one_that_is_sent",
        edits=(
            Edit(
                "raftlog.cluster.replica.upkeep.snapshots:saved",
                "min([keep_after, *under_way])",
                "keep_after",
            ),
        ),
    ),
    Mutant(
        name="reads_served_while_states_differ",
        number=0,
        pitfall=77,
        title="linearizable reads go on although no majority has one state",
        source=_OWN,
        story="tests/cluster/replica/parts/test_requests.py::test_reads_and_writes_are_refused_while_states_differ",
        edits=(
            Edit(
                "raftlog.cluster.replica.parts.reads:check",
                "    if replica.watch.points.differ:\n        raise digest_exchange.refusal(replica)\n",
                "",
            ),
        ),
    ),
    Mutant(
        name="reports_of_points_not_compared",
        number=0,
        pitfall=77,
        title="what another replica reports of its state is kept, and compared with nothing",
        source=_OWN,
        story="tests/cluster/replica/parts/test_requests.py::test_a_report_of_another_state_is_compared_at_once",
        edits=(
            Edit(
                "raftlog.cluster.replica.parts.digest_exchange:take",
                "    _judge(replica)\n",
                "",
            ),
        ),
    ),
    Mutant(
        name="waiting_requests_left_at_the_end",
        number=0,
        pitfall=30,
        title="a node that ends leaves the requests that wait for an index without an answer",
        source=_OWN,
        story="tests/cluster/replica/parts/test_requests.py::test_waiting_requests_are_answered_at_the_end",
        edits=(
            Edit(
                "raftlog.cluster.replica.shutdown:_fail_all",
                "replica.applier.waiters.fail_all(error)",
                "pass",
            ),
        ),
    ),
    Mutant(
        name="forwards_of_a_closed_link_not_told",
        number=0,
        pitfall=30,
        title="the writes that were sent over a link do not learn that it closed",
        source=_OWN,
        story="tests/cluster/replica/parts/test_requests.py::test_writes_sent_over_a_link_that_closed_are_unknown",
        edits=(
            Edit(
                "raftlog.cluster.replica.parts.link_events:bulk_link_closed",
                'replica.writes.pending.link_lost(peer, f"the link to node {peer} closed")',
                "pass",
            ),
        ),
    ),
    Mutant(
        name="members_changed_though_one_holds_the_history",
        number=0,
        pitfall=49,
        title="a change of members is taken where only one voter holds the readable log",
        source=_OWN,
        story="tests/cluster/replica/upkeep/test_history_guard.py::test_a_removal_is_refused_while_too_few_voters_have_the_older_log",
        edits=(
            Edit(
                "raftlog.cluster.replica.upkeep.history_guard:check",
                "if 2 * len(having) > len(after):",
                "if having:",
            ),
        ),
    ),
    Mutant(
        name="forwarded_deadline_in_seconds",
        number=0,
        pitfall=30,
        title="a forwarded write has a thousand times the time that its client gave it",
        source=_OWN,
        story="tests/cluster/protocol/test_forward_frames.py::test_forwarded_requests_arrive_unchanged",
        edits=(
            Edit(
                "raftlog.cluster.protocol.forward_frames:decode_forward",
                "now + left / 1_000",
                "now + left",
            ),
        ),
    ),
    Mutant(
        name="entries_of_older_terms_wait_for_ever",
        number=0,
        pitfall=30,
        title="a write whose place was overwritten gets its answer only once its own index is applied",
        source=_OWN,
        story="tests/cluster/protocol/test_proposals.py::test_a_newer_term_decides_everything_older_that_waits",
        edits=(
            Edit(
                "raftlog.cluster.protocol.proposals:Pending.applied",
                "(batches[0].last <= index or batches[0].term < term)",
                "batches[0].last <= index",
            ),
        ),
    ),
)
