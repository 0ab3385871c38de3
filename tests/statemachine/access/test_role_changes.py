"""Single grants are added to a role, and taken from it, in one step."""

from __future__ import annotations

from raftlog.statemachine.access.commands import AccessAction, AccessCommand, encode_access
from raftlog.statemachine.access.grants import parse_grant
from raftlog.statemachine.answers import Reason
from raftlog.statemachine.commands import Operation, Result
from tests.statemachine.access.test_access import Cluster, put
from tests.statemachine.driver import request


def test_single_grants_are_added_to_a_role_and_taken_from_it() -> None:
    """The role keeps all others. Twice is as once, also within one command. Only a grant that the role has is taken:
    part of a wider one, or the whole of a narrower one, would leave some of it allowed, and is refused."""
    cluster = Cluster()
    cluster.user("ada", "read on keys:a*")
    role = "of-ada"

    def change(action: AccessAction, *grants: str) -> tuple[object, list[str]]:
        reason = cluster.change(action, role, grants=grants)
        return reason, [*map(str, cluster.machine.access.roles[role])]

    give, take = AccessAction.GRANT_ROLE, AccessAction.UNGRANT_ROLE
    both = ["read on keys:a*", "write on keys:a1"]
    assert [change(give, "write on keys:a1") for _ in range(2)] == [(None, both)] * 2
    assert change(give, "read on log", "read on log") == (None, [*both, "read on log"])
    assert cluster.sent("ada", put(b"a1")).result is Result.APPLIED
    for part in ("read on keys:a1", "read on keys:*", "read on keys:Z..b"):
        assert change(take, "read on log", part) == (Reason.STILL_GRANTED, [*both, "read on log"]), part
    assert [change(take, "read on log", "read on keys:b*") for _ in range(2)] == [(None, both)] * 2
    assert change(take, "write on keys:a1") == (None, both[:1])
    assert cluster.sent("ada", put(b"a1")).reason is Reason.NOT_PERMITTED


def test_the_watch_of_an_operator_is_not_taken_by_itself() -> None:
    """`operate on cluster` includes it: a role that keeps the one would still allow the other."""
    cluster = Cluster()
    cluster.user("ada", "operate on cluster")
    assert cluster.machine.access.decide(cluster.admission("ada"), parse_grant("watch on cluster")).is_allowed
    change = cluster.change
    assert change(AccessAction.UNGRANT_ROLE, "of-ada", grants=("watch on cluster",)) is Reason.STILL_GRANTED
    assert change(AccessAction.GRANT_ROLE, "of-ada", grants=("watch on cluster",)) is None
    assert change(AccessAction.UNGRANT_ROLE, "of-ada", grants=("operate on cluster",)) is None
    assert [*map(str, cluster.machine.access.roles["of-ada"])] == ["watch on cluster"]
    assert not cluster.machine.access.decide(cluster.admission("ada"), parse_grant("operate on cluster")).is_allowed


def test_a_role_that_makes_the_last_admin_keeps_its_grant() -> None:
    """Else no user could change permissions any more."""
    cluster = Cluster()
    cluster.user("ada", "access on cluster")
    assert cluster.change(AccessAction.DELETE_USER, "root") is None
    role = "of-ada"
    for name, grants in ((AccessAction.UNGRANT_ROLE, ("access on cluster",)), (AccessAction.SET_ROLE, ())):
        command = AccessCommand(name, role, grants=tuple(map(parse_grant, grants)))
        answer = cluster.sent("ada", request(Operation.ACCESS, None, encode_access(command)))
        assert (answer.reason, len(cluster.machine.access.roles[role])) == (Reason.LAST_ADMIN, 1)
