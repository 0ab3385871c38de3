"""A change of the members that would leave older history on fewer than a majority is refused until it does not."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.cluster.api.errors import ApiError, Code, Outcome
from raftlog.cluster.replica.upkeep import history_guard
from raftlog.cluster.replica.upkeep.history_guard import voters_after
from raftlog.raft.changes import AddLearners, ChangeAddresses, MemberChange, Promote, Remove, Replace
from raftlog.raft.configuration import Configuration, Member
from tests.cluster.nodes import Nodes, cluster_of, deadline
from tests.cluster.replica.parts.test_members import formatted, settled
from tests.cluster.replica.upkeep.test_backfill import MANY, everything, held, is_whole, late, trim
from tests.cluster.replica.upkeep.test_snapshots import write
from tests.support import wait_until_async

__all__ = ["held"]


def member(node: int, disk: str = "") -> Member:
    """A member at made-up addresses."""
    return Member(node, disk or f"{node:032x}", f"127.0.0.1:{node}", f"http://127.0.0.1:{node}")


THREE = Configuration(tuple(member(node) for node in (1, 2, 3, 4)), (1, 2, 3), (), (4,))


@pytest.mark.parametrize(
    ("change", "voters"),
    [
        (AddLearners((member(5),)), (1, 2, 3, 5)),
        (AddLearners((member(5),), promote=False), (1, 2, 3)),
        (Promote((4,)), (1, 2, 3, 4)),
        (Remove((2, 4)), (1, 3)),
        (Replace(2, member(5)), (1, 3, 5)),
        (Replace(2, member(2, "ab" * 16)), (1, 2, 3)),
        (Replace(4, member(5)), (1, 2, 3)),
        (ChangeAddresses((member(1),)), (1, 2, 3)),
    ],
)
def test_the_voters_after_a_change_are_computed(change: MemberChange, voters: tuple[int, ...]) -> None:
    """Promoted learners count, others do not, and replaced voters are gone."""
    assert voters_after(THREE, change) == voters


@pytest.mark.parametrize("voters", range(1, 6))
async def test_a_node_may_lose_its_log_while_a_majority_has_it_without_this_one(
    monkeypatch: pytest.MonkeyPatch, voters: int
) -> None:
    """Half of the voters are no majority: with this node one more has it, and another may fail."""

    async def lacks(_: object, voter: int, *, is_doubted: bool) -> str:
        return "" if voter <= 1 + having and is_doubted else "it is fetching the older log"

    monkeypatch.setattr(history_guard, "_lacks", lacks)
    configuration = SimpleNamespace(voters=tuple(range(1, voters + 1)))
    replica: Any = SimpleNamespace(
        identity=SimpleNamespace(node=1), core=SimpleNamespace(state=SimpleNamespace(configuration=configuration))
    )
    for having in range(voters):
        assert await history_guard.is_kept_by_others(replica) is (having > voters - having)


@pytest.mark.parametrize(("begins", "applied", "lacks"), [(3, 9, False), (4, 9, True), (3, 8, True), (1, 20, False)])
async def test_a_voter_lacks_what_neither_it_nor_the_log_of_the_leader_has(
    begins: int, applied: int, lacks: bool
) -> None:
    """The leader sends the entries from its first one on, 10. Records from 3 on may be read."""

    async def ask(*_: object, **__: object) -> Any:
        return SimpleNamespace(begins=begins, applied=applied)

    replica: Any = SimpleNamespace(
        identity=SimpleNamespace(node=1),
        peer_log=SimpleNamespace(ask=ask),
        machine=SimpleNamespace(oldest=3),
        core=SimpleNamespace(state=SimpleNamespace(log=SimpleNamespace(first=10))),
    )
    assert bool(await history_guard._lacks(replica, 2, is_doubted=True)) is lacks


async def change(nodes: Nodes, wanted: MemberChange) -> None:
    """Asks the present leader; a change refused for another reason than the older log is asked again."""
    while True:
        try:
            await (await nodes.leader()).change_members(wanted, deadline())
        except ApiError as error:
            if error.more.get("why") == "history" or not error.row.retryable:
                raise
        else:
            return


async def test_a_removal_is_refused_while_too_few_voters_have_the_older_log(
    tmp_path: Path, held: asyncio.Event
) -> None:
    """Of three voters one still fetches: removing, replacing and adding are refused with its name, nothing happened,
    and it may be tried again; once it has all, the same change is taken."""
    async with cluster_of(3, tmp_path, **MANY) as nodes:
        whole, again = await late(nodes)
        third = next(each.node_id for each in nodes.running.values() if each not in (whole, again))
        joining = formatted(nodes, 4)
        for wanted in (Remove((third,)), Replace(third, joining), AddLearners((joining,))):
            with pytest.raises(ApiError, match=rf"node {again.node_id}: its disk begins at") as refused:
                await change(nodes, wanted)
            assert (refused.value.code, refused.value.more["why"]) == (Code.MEMBERS_CHANGING, "history")
            assert (refused.value.row.outcome, refused.value.row.retryable) == (Outcome.NOT_APPLIED, True)
        assert whole.state.core.state.configuration.voters == (1, 2, 3)
        held.set()
        await wait_until_async(partial(is_whole, again), 60, what="the older log")
        await change(nodes, Remove((third,)))
        await settled(nodes, tuple(sorted((whole.node_id, again.node_id))))


async def test_a_silent_voter_counts_as_without_older_log(tmp_path: Path, held: asyncio.Event) -> None:
    """A voter that is down counts as one that has nothing: of the three that a replacement leads to only one would
    have the older log for sure. To replace the dead one itself leaves two that have it."""
    async with cluster_of(3, tmp_path, **MANY) as nodes:
        whole, again = await late(nodes)
        held.set()
        await wait_until_async(partial(is_whole, again), 60, what="the older log")
        third = next(each.node_id for each in nodes.running.values() if each not in (whole, again))
        await nodes.kill(third)
        joining = formatted(nodes, 4)
        with pytest.raises(ApiError, match=rf"node {third}: (the link|it has)"):
            await change(nodes, Replace(again.node_id, joining))
        await change(nodes, Replace(third, joining))
        await nodes.start(4)
        await settled(nodes, tuple(sorted((whole.node_id, again.node_id, 4))))


async def test_a_wiped_node_is_replaced_while_another_voter_has_not_fetched_the_older_log(
    tmp_path: Path, held: asyncio.Event
) -> None:
    """That one may wait for disk space for long. A voter that does not answer takes no log with it that is known, so
    its disk is replaced. The one that has the log may not leave.

    Guard: `leaving` in `check` of cluster/replica/upkeep/history_guard.py.
    """
    async with cluster_of(3, tmp_path, **MANY) as nodes:
        whole, again = await late(nodes)
        third = next(each.node_id for each in nodes.running.values() if each not in (whole, again))
        await nodes.kill(third)
        joining = formatted(nodes, 4)
        with pytest.raises(ApiError, match=rf"node {again.node_id}: its disk begins at"):
            await change(nodes, Replace(whole.node_id, joining))
        await change(nodes, Replace(third, joining))
        assert not is_whole(again)
        await nodes.start(4)
        await settled(nodes, tuple(sorted((whole.node_id, again.node_id, 4))))
        held.set()


async def test_the_new_node_gets_the_log_of_the_only_voter_that_leaves(tmp_path: Path) -> None:
    """The leader saves snapshots while it waits for the node that takes its place. It still sends the log from the
    first entry on: no other node will have those records.

    Guard: `is_changing` in `saved` of cluster/replica/upkeep/snapshots.py.
    """
    async with cluster_of(1, tmp_path, **MANY) as nodes:
        await write(nodes, 20)
        only = await nodes.leader()
        wanted = await everything(only, only.applied)
        await change(nodes, Replace(1, formatted(nodes, 2)))
        await write(nodes, 600)
        end = only.applied
        while only.state.snapshots.index < end:  # a snapshot so new that the log before it could go
            await write(nodes, 50)
        await wait_until_async(lambda: only.state.snapshots.saving is None, 60, what="the end of that save")
        joined = await nodes.start(2)
        await settled(nodes, (2,))
        await nodes.stop(1)
        assert joined.state.disk.oldest == joined.machine.oldest == 1
        assert [pair[0] for pair in (await everything(joined, joined.applied))[: len(wanted)]] == [
            pair[0] for pair in wanted
        ]


async def test_the_only_voter_of_a_trimmed_log_is_not_replaced_in_one_step(tmp_path: Path) -> None:
    """A new node cannot follow a log without its beginning: it gets a snapshot, and the records would be gone with the
    only voter. To add it, and to remove the old one once it has the log, loses nothing.

    Guard: `first == 1` in `check` of cluster/replica/upkeep/history_guard.py.
    """
    async with cluster_of(1, tmp_path, **MANY) as nodes:
        await write(nodes, 600)
        only = await nodes.leader()
        await wait_until_async(lambda: only.state.core.state.log.first > 1, 60, what="the log is compacted")
        await trim(nodes, only, only.applied)
        assert 1 < only.state.core.state.log.first <= only.machine.oldest, "the leader could send all to an older voter"
        joining = formatted(nodes, 2)
        with pytest.raises(ApiError, match="a new node begins without it"):
            await change(nodes, Replace(1, joining))
        await change(nodes, AddLearners((joining,)))
        joined = await nodes.start(2)
        await settled(nodes, (1, 2))
        await wait_until_async(partial(is_whole, joined), 60, what="the older log")
        await change(nodes, Remove((1,)))
        await settled(nodes, (2,))
