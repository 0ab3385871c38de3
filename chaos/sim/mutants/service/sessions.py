"""Plants mutants of answers to clients: sessions, kept answers and outcomes."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Edit, Mutant

MUTANTS: Final = (
    Mutant(
        name="sessions_missing_from_the_snapshot",
        number=23,
        pitfall=58,
        title="the snapshot has no session table",
        source="thesis 5.1; dragonboat #60",
        target="raftlog.statemachine.machine:StateMachine.state",
        old="self._store, self._sessions, self._digests,",
        new="self._store, SessionTable(), self._digests,",
    ),
    Mutant(
        name="retry_applied_twice",
        number=23,
        pitfall=73,
        title="a request that is sent again is carried out again",
        source="thesis 6.3; etcd #18424",
        target="raftlog.statemachine.sessions:SessionTable.admit",
        old="kept = session.kept.get(sequence)",
        new="kept = None",
    ),
    Mutant(
        name="timeout_told_as_a_failure",
        number=24,
        pitfall=30,
        title="a write with unknown outcome at its deadline is answered as not applied",
        source="a classic; openraft 43dd8b6f",
        target="raftlog.cluster.protocol.proposals:Pending._expire",
        old="request, Code.TIMEOUT,",
        new="request, Code.DEADLINE,",
    ),
    Mutant(
        name="expired_session_told_as_not_applied",
        pitfall=75,
        title="of a request whose session has expired the answer says not_applied, although a copy of it was applied",
        source="raftlog itself, found by a review",
        target="raftlog.cluster.api.errors:outcome_of",
        old="    return Outcome.UNKNOWN if",
        new=("    if code is Code.SESSION_EXPIRED:\n        return Outcome.NOT_APPLIED\n    return Outcome.UNKNOWN if"),
    ),
    Mutant(
        name="settled_sequence_told_as_not_applied",
        pitfall=75,
        title="of a request below its settled mark the answer says not_applied, although a copy of it was applied",
        source="raftlog itself, found by a review",
        target="raftlog.cluster.api.errors:outcome_of",
        old="    return Outcome.UNKNOWN if",
        new=(
            "    if code is Code.SEQUENCE_SETTLED:\n        return Outcome.NOT_APPLIED\n    return Outcome.UNKNOWN if"
        ),
    ),
    Mutant(
        name="refused_copy_told_as_not_applied",
        pitfall=75,
        title="a copy that a busy or leaderless node refuses is answered not_applied, though the first was applied",
        source="raftlog itself, found by a review",
        target="raftlog.cluster.api.errors:outcome_of",
        old="has_session and code not in DECIDED",
        new="False",
    ),
    Mutant(
        name="only_the_last_sequence_kept",
        number=28,
        title="a session knows only its newest sequence: one that was overtaken is taken for a repetition",
        source="thesis 6.3, with pipelining",
        target="raftlog.statemachine.sessions:SessionTable.admit",
        old="kept = session.kept.get(sequence)",
        new=(
            "newest = max(session.kept, default=0)\n"
            "    if sequence < newest and session.kept[newest] != VOID:\n"
            "        return Verdict(Result.REPEATED, None, session.kept[newest][_HASH.size :])\n"
            "    kept = session.kept.get(sequence)"
        ),
    ),
    Mutant(
        name="sessions_expire_by_wall_clock",
        number=32,
        pitfall=74,
        title="sessions expire by the leader's wall clock instead of the cluster clock",
        source="thesis 6.3",
        target="raftlog.statemachine.machine:StateMachine.apply",
        old="sessions.due[0][0] <= clock_ms:\n        sessions.expire(clock_ms)",
        new="sessions.due[0][0] <= time_ms:\n        sessions.expire(time_ms)",
        also=(
            Edit(
                "raftlog.statemachine.machine:StateMachine._session_request",
                "self._sessions.admit(request, self.clock_ms,",
                "self._sessions.admit(request, self.time_ms,",
            ),
            Edit(
                "raftlog.statemachine.machine:StateMachine._open_session",
                "self._sessions.open(last, command.argument, self.clock_ms,",
                "self._sessions.open(last, command.argument, self.time_ms,",
            ),
            Edit(
                "raftlog.statemachine.machine:StateMachine._keep_session",
                "self._sessions.keep_alive(command.argument, self.clock_ms, self._owner)",
                "self._sessions.keep_alive(command.argument, self.time_ms, self._owner)",
            ),
        ),
    ),
    Mutant(
        name="repetition_gets_a_fresh_answer",
        pitfall=76,
        title="a repeated request is answered with its own place, not with the first one's",
        source="thesis 6.3",
        target="raftlog.statemachine.machine:StateMachine._verdict",
        old="return RequestEffect(result, original.revision, original.succeeded, original.last, (), answer)",
        new=(
            "fresh = original._replace(revision=self._store.revision, first=first, last=last); "
            "return RequestEffect(result, fresh.revision, fresh.succeeded, last, (), encode_answer(fresh))"
        ),
    ),
    Mutant(
        name="consumers_missing_from_the_snapshot",
        pitfall=58,
        title="the snapshot has no consumer groups",
        source="as sessions_missing_from_the_snapshot",
        target="raftlog.statemachine.machine:StateMachine.state",
        old="self._digests, self.consumers,",
        new="self._digests, ConsumerTable(),",
    ),
    Mutant(
        name="fenced_owner_commits",
        pitfall=79,
        title="a consumer group's owner moves it although somebody claimed it since",
        source="etcd #11457: a lease without fencing",
        target="raftlog.statemachine.consumers:ConsumerTable.execute",
        old="if generation not in (0, group.generation):",
        new="if generation > group.generation:",
    ),
    Mutant(
        name="answer_kept_for_a_removed_session",
        pitfall=77,
        title="a user that removes itself in its session leaves its answer in a count that no snapshot holds",
        source="this project, until a review found it",
        story=(
            "tests/statemachine/access/test_access.py::"
            "test_a_user_that_removes_itself_in_its_session_leaves_nothing_behind"
        ),
        target="raftlog.statemachine.sessions:SessionTable.keep",
        old="if self._sessions.get(session.id) is session:",
        new="if True:",
    ),
    Mutant(
        name="answers_of_a_turn_in_one_frame",
        pitfall=86,
        title="a leader ends when it answers thousands of forwarded requests at once: a frame's header has 64 KiB",
        source="this project, until a review found it",
        story=("tests/cluster/protocol/test_forward_frames.py::test_any_number_of_answers_of_a_turn_fits_its_frames"),
        target="raftlog.cluster.protocol.forward_frames:answer_frames",
        old=(
            "for start in range(0, len(known), ANSWERS_MAX):\n"
            "            yield peer, encode_answers(known[start : start + ANSWERS_MAX], term)"
        ),
        new="yield peer, encode_answers(known, term)",
    ),
    Mutant(
        name="copy_joins_a_batch_by_its_index_alone",
        pitfall=86,
        title="the deadline of a copy goes to a batch of an earlier term with a higher index: it has no answer",
        source="this project: seed 8600094",
        story="tests/cluster/protocol/test_proposals.py::test_a_late_repetition_keeps_its_own_deadline",
        target="raftlog.cluster.protocol.proposals:Pending._joins",
        old="if batch.term == term and batch.last",
        new="if batch.last",
    ),
)
