"""Plants mutants of tables that a snapshot restores wrongly, so that both snapshots have the same bytes."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Mutant

_FIELDS: Final = "tests/statemachine/test_snapshot_fields.py::test_a_restored_state_is_the_saved_one_field_by_field"
_SOURCE: Final = "raftlog itself, planted by a review"

MUTANTS: Final = (
    Mutant(
        name="roles_without_grants_missing_from_the_snapshot",
        pitfall=58,
        title="a role without grants is not in the snapshot: a restored node gives it to no user, others do",
        source=_SOURCE,
        story=_FIELDS,
        target="raftlog.statemachine.access.table:AccessTable.rows",
        old="for name, grants in sorted(self.roles.items())]",
        new="for name, grants in sorted(self.roles.items()) if grants]",
    ),
    Mutant(
        name="owner_of_a_session_without_its_issuer",
        pitfall=58,
        title="a snapshot names the owner of a session as if it were a user of the table, not of an identity provider",
        source=_SOURCE,
        story=_FIELDS,
        target="raftlog.statemachine.snapshot:_session_row",
        old="session.owner]",
        new='session.owner.removeprefix("jwt:")]',
    ),
    Mutant(
        name="kept_bytes_of_all_sessions_not_restored",
        pitfall=58,
        title="a restored node counts no kept answers against their limit: it takes a write that others refuse",
        source=_SOURCE,
        story=_FIELDS,
        target="raftlog.statemachine.sessions:SessionTable._add",
        old="self._count(session.owner, 1, session.answer_bytes)",
        new="self._count(session.owner, 1, 0)",
    ),
    Mutant(
        name="makers_of_groups_not_restored",
        pitfall=58,
        title="a restored node does not know which user made a group: it takes a claim that others refuse",
        source="raftlog itself",
        story=_FIELDS,
        target="raftlog.statemachine.snapshot:Restorer._take_consumer",
        old="decode_consumer_row(*fields[:_FIELDS]), *makers)",
        new="decode_consumer_row(*fields[:_FIELDS]))",
    ),
)
