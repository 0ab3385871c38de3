"""Plants mutants of permissions: where they are checked, as of when, and what they reach."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Mutant

_MACHINE: Final = "raftlog.statemachine.machine:StateMachine."
_TABLE: Final = "raftlog.statemachine.access.table:AccessTable."
_DOOR: Final = "raftlog.cluster.http.exchange.access:Access."
_ACCESS: Final = "tests/cluster/http/test_access.py::test_"
_SHARES: Final = "tests/statemachine/access/test_shares.py::test_"
_REVIEW: Final = "this project, until a review found it"

MUTANTS: Final = (
    Mutant(
        name="permission_checked_only_at_the_door",
        pitfall=87,
        title="a write is checked by the node that takes it, and not where it is applied",
        source="etcd, before it had a revision of permissions",
        target=_MACHINE + "_requests",
        old="elif principal is not None and not is_permitted(principal, commands):",
        new="elif principal is not None and not is_permitted(principal, commands) and not commands:",
    ),
    Mutant(
        name="permission_of_a_stale_revision",
        pitfall=87,
        title="a write that was admitted with a token is applied although the token was revoked before",
        source="etcd's revision of permissions, left out",
        target=_TABLE + "_compile",
        old="elif revision < user.since:",
        new="elif revision < 0:",
    ),
    Mutant(
        name="permissions_kept_over_a_change",
        pitfall=87,
        title="compiled permissions are used on after the roles have changed",
        source="etcd #11651: nodes with different revisions of permissions",
        target=_TABLE + "execute",
        old="self._forget()",
        new="pass",
    ),
    Mutant(
        name="prefix_off_by_one",
        pitfall=87,
        title="the end of a prefix belongs to it",
        source="a classic",
        target="raftlog.statemachine.access.permissions:Ranges.holds_key",
        old="or key < stop",
        new="or key <= stop",
    ),
    Mutant(
        name="other_branch_not_checked",
        pitfall=87,
        title="a transaction is checked by its first branch alone",
        source="etcd's checkTxnAuth, half of it left out",
        target="raftlog.statemachine.access.needs:_needs_of_txn",
        old="for branch in (txn.then, txn.orelse):",
        new="for branch in (txn.then,):",
    ),
    Mutant(
        name="filter_forgotten_in_a_page",
        pitfall=87,
        title="a page of the log shows records of keys that its reader may not read",
        source="a classic",
        target="raftlog.cluster.records.rows:is_visible",
        old="return hidden(permissions, command) is None",
        new="return True",
    ),
    Mutant(
        name="session_of_another_principal",
        pitfall=87,
        title="a principal may use every session that it knows the number of",
        source="raftlog itself",
        target="raftlog.statemachine.sessions:SessionTable._known",
        old="owner is None or known.owner == owner",
        new="owner is None or known.owner",
    ),
    Mutant(
        name="permission_asked_before_the_session",
        pitfall=87,
        title="the copy of a write that was applied is refused, because its permission is gone since",
        source="raftlog itself: issue of wrong not_applied answers",
        target=_MACHINE + "_session_request",
        old="if isinstance(admitted, Verdict):",
        new=(
            "if principal is not None and not is_permitted(principal, commands):\n"
            "        return self._refused(Reason.NOT_PERMITTED, last, request[0])\n"
            "    if isinstance(admitted, Verdict):"
        ),
    ),
    Mutant(
        name="access_missing_from_the_snapshot",
        pitfall=87,
        title="the snapshot has no users, roles and tokens",
        source="thesis 5.1, as of sessions",
        target=_MACHINE + "state",
        old="self.access,",
        new="AccessTable(),",
    ),
    Mutant(
        name="removed_node_still_counts",
        pitfall=87,
        title="the certificate of a removed node counts: its key operates the cluster, and acts as any user",
        source=_REVIEW,
        story=f"{_ACCESS}the_certificate_of_a_node_counts_while_it_is_a_member",
        target=_DOOR + "check_member",
        old="if not holder.name.isdecimal() or self._node.configuration.member(int(holder.name)) is None:",
        new="if False:",
    ),
    Mutant(
        name="node_names_users_everywhere",
        pitfall=87,
        title="a node's certificate names a user on every route, not only for a request that it passes on",
        source=_REVIEW,
        story=f"{_ACCESS}certificates_name_users_and_nodes_pass_requests_on",
        target=_DOOR + "admit",
        old="if caller.is_vouched and not (is_passed_on and H_PASSED_ON in call.headers):",
        new="if False:",
    ),
    Mutant(
        name="withdrawn_key_counts_on",
        pitfall=87,
        title="a token that was checked before counts until its own end, though the provider withdrew its key",
        source=_REVIEW,
        story="tests/cluster/http/test_access_tokens.py::test_a_token_of_a_withdrawn_key_counts_no_more",
        target=_DOOR + "_is_current",
        old="return not caller.keys_generation or (",
        new="return True or (",
    ),
    Mutant(
        name="long_poll_keeps_its_slot",
        pitfall=87,
        title="a request that waits for an index keeps the slot of its user, and delays the others",
        source=_REVIEW,
        story=(
            "tests/cluster/http/test_fair_queue.py::test_a_long_poll_has_no_slot_and_counts_as_a_stream_of_its_user"
        ),
        target="raftlog.cluster.http.exchange.call:long_wait",
        old="service.fair_queue.leave(call)",
        new="pass",
    ),
    Mutant(
        name="token_sent_to_a_plain_url",
        pitfall=87,
        title="a node with TLS forwards a user's token to whatever URL the leader is said to have",
        source=_REVIEW,
        story=(
            "tests/cluster/http/routes/test_leader_proxy.py::"
            "test_a_node_with_tls_sends_no_token_to_a_plain_url_of_the_leader"
        ),
        target="raftlog.cluster.http.exchange.leader_proxy:passed_on",
        old="if not _is_safe(service, call, leader.url):",
        new="if False:",
    ),
    Mutant(
        name="raw_segments_hide_nothing",
        pitfall=87,
        title="raw segments show users, grants and hashes of tokens that pages hide from the same reader",
        source=_REVIEW,
        story="tests/cluster/http/test_sight.py::test_no_way_shows_a_fact_that_its_reader_may_not_see",
        target="raftlog.cluster.http.routes.log_stream:_raw_chunk",
        old="piece.segment if query.sees is None else await _blanked(service, piece, query.sees)",
        new="piece.segment",
    ),
    Mutant(
        name="explanation_shows_the_value",
        pitfall=87,
        title="an operator reads any record by asking for its explanation",
        source=_REVIEW,
        story="tests/cluster/http/test_sight.py::test_no_way_shows_a_fact_that_its_reader_may_not_see",
        target="raftlog.cluster.http.routes.explain:explain_index",
        old="if sees is not None and not",
        new="if sees is None and not",
    ),
    Mutant(
        name="malformed_transaction_names_no_key",
        pitfall=87,
        title="every reader of the log sees the bytes of a transaction that cannot be decoded",
        source=_REVIEW,
        story="tests/cluster/http/test_sight.py::test_no_way_shows_a_fact_that_its_reader_may_not_see",
        target="raftlog.statemachine.access.needs:_reads_of_txn",
        old="return iter((Grant(Verb.READ, Resource.KEYS),))",
        new="return iter(())",
    ),
    Mutant(
        name="crc_of_hidden_bytes_goes_out",
        pitfall=87,
        title="a header names the CRC of the entry before as it is on disk, by which a guess of it can be checked",
        source="this project, before its first commit",
        story="tests/cluster/records/test_blanking.py::test_no_crc_of_hidden_bytes_goes_out",
        target="raftlog.cluster.records.blanking:blanked",
        old="previous_crc = reseal(out, at, len(entry.data), previous_crc)",
        new="previous_crc = reseal(out, at, len(entry.data), previous_crc) and entry.mark.header_crc",
    ),
    Mutant(
        name="digest_counts_hidden_values",
        pitfall=87,
        title="the export of a reader that may not see permissions fails its proof",
        source="this project, before its first commit",
        story="tests/statemachine/test_digest.py::test_what_not_every_reader_may_see_is_left_out",
        target="raftlog.statemachine.digest:log_row_hashes",
        old='if kind == "configuration" or operation == "access":',
        new="if False:",
    ),
    Mutant(
        name="sessions_without_a_share",
        pitfall=87,
        title="one user that may append something opens all sessions, and no other client gets one",
        source=_REVIEW,
        story=f"{_SHARES}a_user_gets_its_share_and_the_others_theirs",
        target="raftlog.statemachine.sessions:SessionTable.open",
        old="sessions >= share_of(limits.sessions_max, parts):",
        new="sessions >= limits.sessions_max:",
    ),
    Mutant(
        name="closed_sessions_stay_in_the_share",
        pitfall=87,
        title="a session that ended still counts in the share of its user, which gets no new ones in the end",
        source="raftlog itself",
        story=f"{_SHARES}what_ends_makes_room_in_the_share",
        target="raftlog.statemachine.sessions:SessionTable._remove",
        old="self._count(session.owner, -1, -session.answer_bytes)",
        new="self._count(session.owner, 0, -session.answer_bytes)",
    ),
    Mutant(
        name="shares_before_their_cluster_version",
        pitfall=71,
        title="a node refuses by a share what members of an older version apply",
        source="raftlog itself",
        story=f"{_SHARES}before_that_cluster_version_nobody_has_a_share",
        target=_MACHINE + "_parts",
        old="if principal is None or self.version < versions.SHARES:",
        new="if principal is None:",
    ),
)
