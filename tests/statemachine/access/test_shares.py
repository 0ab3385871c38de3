"""One user has a share of what stays: of the sessions, of their kept answers, and of the consumer groups."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raftlog.statemachine.access.commands import AccessAction
from raftlog.statemachine.answers import Answer, Reason
from raftlog.statemachine.commands import SHARE_PARTS, Operation, Result
from raftlog.statemachine.consumers import ConsumerAction, ConsumerCommand, ConsumerTable, encode_consumer
from raftlog.statemachine.machine import StateMachine
from tests.statemachine.access.test_access import Cluster, put
from tests.statemachine.comparing import differences
from tests.statemachine.driver import Driver, request

SHARE = 2
ANSWER_BYTES = 48
LIMITS = (
    ("consumers_max", SHARE * SHARE_PARTS),
    ("session_answers_bytes_max", SHARE * SHARE_PARTS * ANSWER_BYTES),
    ("sessions_max", SHARE * SHARE_PARTS),
)
CLAIM, DELETE = (encode_consumer(ConsumerCommand(action)) for action in (ConsumerAction.CLAIM, ConsumerAction.DELETE))


class Shared(Cluster):
    """A cluster in which one user may have two of everything; ada and ben may write keys and groups."""

    def __init__(self) -> None:
        super().__init__()
        self.entry(parameters=LIMITS)
        for name in ("ada", "ben"):
            self.user(name, "write on keys:*", "write on groups:*")
        self.sessions: dict[str, int] = {}
        self.sequence = 0

    def open_as(self, name: str) -> Answer:
        """Opens a session."""
        return self.sent(name, request(Operation.SESSION_OPEN, argument=60_000))

    def write_as(self, name: str, settled: int = 0) -> Answer:
        """A put in the one session of that user, whose answer is kept."""
        session = self.sessions.get(name) or self.open_as(name).last
        self.sessions[name], self.sequence = session, self.sequence + 1
        return self.sent(name, put(b"k", session=session, sequence=self.sequence, settled=settled and self.sequence))

    def claim_as(self, name: str) -> Answer:
        """Claims a consumer group that is new."""
        return self.sent(name, request(Operation.CONSUMER, b"%d" % self.machine.applied_index, CLAIM))


MADE = {
    "sessions": (Shared.open_as, Reason.SESSIONS_SHARE, Reason.SESSIONS_FULL),
    "answers": (Shared.write_as, Reason.ANSWERS_SHARE, Reason.ANSWERS_FULL),
    "groups": (Shared.claim_as, Reason.CONSUMERS_SHARE, Reason.CONSUMERS_FULL),
}
KINDS = pytest.mark.parametrize("kind", MADE)


def outcomes(cluster: Shared, kind: str, name: str, times: int) -> Iterator[Reason | None]:
    """Why each of so many requests of a kind was refused."""
    for _ in range(times):
        yield MADE[kind][0](cluster, name).reason


@KINDS
def test_a_user_gets_its_share_and_the_others_theirs(kind: str) -> None:
    """The third of one user is refused, each time it asks; another user still gets two of its own, and the admin what
    is left of the whole."""
    cluster, (_, share, full) = Shared(), MADE[kind]
    assert [*outcomes(cluster, kind, "ada", 4)] == [None, None, share, share]
    assert [*outcomes(cluster, kind, "ben", 3)] == [None, None, share]
    assert [*outcomes(cluster, kind, "root", 13)] == [None] * 12 + [full]


@KINDS
def test_a_restored_machine_counts_as_the_one_that_was_saved(kind: str) -> None:
    """Field by field; and a share that was full before is full after it, one that was free is free."""
    cluster, (_, share, _) = Shared(), MADE[kind]
    assert [*outcomes(cluster, kind, "ada", 2), *outcomes(cluster, kind, "ben", 1)] == [None] * 3
    saved, cluster.machine = cluster.machine, StateMachine.restore(cluster.machine.snapshot())
    assert not differences(cluster.machine, saved)
    assert [*outcomes(cluster, kind, "ada", 1), *outcomes(cluster, kind, "ben", 2)] == [share, None, share]


@KINDS
def test_without_access_control_nobody_has_a_share(kind: str) -> None:
    """Neither while an admin has switched it off, nor before the first admin."""
    cluster = Shared()
    cluster.change(AccessAction.DISABLE)
    assert [*outcomes(cluster, kind, "ada", 16)] == [None] * 16
    driver = Driver()
    driver.entry(parameters=LIMITS)
    assert [driver.answer(request(Operation.SESSION_OPEN, argument=60_000)).reason for _ in range(16)] == [None] * 16


def test_what_ends_makes_room_in_the_share() -> None:
    """A session that is closed or expires, answers that are settled or whose session ends, a group that is deleted:
    by whomever."""
    cluster = Shared()
    first, second = cluster.open_as("ada").last, cluster.open_as("ada").last
    cluster.sent("ada", request(Operation.SESSION_CLOSE, argument=first))
    assert cluster.open_as("ada").reason is None
    cluster.clock_ms = 60_000
    assert [cluster.open_as("ada").reason for _ in range(3)] == [None, None, Reason.SESSIONS_SHARE]
    assert cluster.machine.receipt(second, 1, "ada").state == "expired"
    cluster.clock_ms = 120_000
    assert [*outcomes(cluster, "answers", "ada", 3)] == [None, None, Reason.ANSWERS_SHARE]
    void = request(Operation.VOID, argument=99, session=cluster.sessions["ada"])
    assert cluster.sent("ada", void).reason is Reason.ANSWERS_SHARE
    assert cluster.write_as("ada", settled=1).reason is None
    groups = [cluster.claim_as("ada").last - 1 for _ in range(2)]
    cluster.sent("root", request(Operation.CONSUMER, b"%d" % groups[0], DELETE))
    assert [cluster.claim_as("ada").reason for _ in range(2)] == [None, Reason.CONSUMERS_SHARE]
    cluster.change(AccessAction.DELETE_USER, "ada")
    cluster.user("ada", "write on keys:*", "write on groups:*")  # its groups stay; its sessions ended with it
    assert (cluster.claim_as("ada").reason, cluster.open_as("ada").reason) == (Reason.CONSUMERS_SHARE, None)


def test_a_group_stays_its_makers_and_an_old_one_goes_on() -> None:
    """A user that claims the group of another uses nothing of its own share; one that has its share goes on with the
    groups that there are."""
    cluster = Shared()
    groups = [cluster.claim_as("ada").last - 1 for _ in range(2)]
    for name in ("ben", "ada", "ben"):
        answers = [cluster.sent(name, request(Operation.CONSUMER, b"%d" % group, CLAIM)) for group in groups]
        assert [answer.result for answer in answers] == [Result.APPLIED] * 2
    assert [*outcomes(cluster, "groups", "ben", 3)] == [None, None, Reason.CONSUMERS_SHARE]


def test_replicas_that_know_different_makers_have_different_digests() -> None:
    """Else one could refuse what the others apply, and nothing would have shown it before."""
    rows = Shared()
    rows.claim_as("ada")
    tables = []
    for maker in ("ada", "ben", ""):
        table = ConsumerTable()
        for name, group in rows.machine.consumers.rows():
            table.load(name, group, maker)
        tables.append(table.digest(7))
    assert len(dict.fromkeys(tables)) == 3
    assert rows.machine.consumers.digest(7) == tables[0]
