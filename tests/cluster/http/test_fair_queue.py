"""Tests turns of users: none waits alone, those that compete share the slots, and a user with little never waits."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.cluster.admission.queue import ALONE_S, FairQueue
from raftlog.cluster.api.errors import ApiError, Code
from tests.cluster.http.access_world import AccessWorld
from tests.cluster.http.fast.fast_wire import request, turns
from tests.support import hang_s

SLOTS = 4
BODY = b"v"


class Node:
    """The turns of a node, with requests named by numbers, and a clock that stands still."""

    def __init__(self, waiting_max: int = 100) -> None:
        self.fair_queue = FairQueue(SLOTS, waiting_max)
        self.now = 0.0
        self.ids = 0
        self.begun: dict[str, list[int]] = {}

    def ask(self, user: str) -> int:
        """A request begins, or waits; its number."""
        self.ids += 1
        number = self.ids
        turn = self.fair_queue.enter(number, user, self.now)
        if turn is None:
            self.begun.setdefault(user, []).append(number)
        else:
            turn.add_done_callback(
                lambda turn: None if turn.cancelled() else self.begun.setdefault(user, []).append(number)
            )
        return number

    async def answer(self, user: str) -> None:
        """The oldest request of that user is answered."""
        self.fair_queue.leave(self.begun[user].pop(0))
        await asyncio.sleep(0)

    def in_progress(self) -> dict[str, int]:
        """How many requests of each user were begun, and not answered."""
        return {user: len(numbers) for user, numbers in self.begun.items() if numbers}


async def test_a_user_alone_never_waits() -> None:
    """However many of its requests are in progress, also some time after another user's newest request."""
    node = Node()
    for _ in range(3 * SLOTS):
        node.ask("busy")
    node.ask("other")
    node.now = ALONE_S
    for _ in range(3 * SLOTS):
        node.ask("other")
    assert node.in_progress() == {"busy": 3 * SLOTS, "other": 3 * SLOTS + 1}


async def test_a_user_that_sends_little_passes_the_queue_of_a_busy_one() -> None:
    """The busy user has all slots and more requests that wait; the other's next requests begin at once, up to an equal
    part of the slots. Then it waits too, and both are served in turn."""
    node = Node()
    node.ask("other")
    node.begun.clear()  # alone it needed no place
    for _ in range(10):
        node.ask("busy")
    assert node.in_progress() == {"busy": SLOTS}
    for _ in range(5):
        node.ask("other")
    assert node.in_progress() == {"busy": SLOTS, "other": SLOTS // 2}
    for _ in range(SLOTS // 2):
        await node.answer("busy")  # the slots are above their number: none is free
    assert node.in_progress() == {"busy": SLOTS // 2, "other": SLOTS // 2}
    for _ in range(4):
        await node.answer("busy")
        await node.answer("other")
    assert sum(node.in_progress().values()) == SLOTS
    assert min(node.in_progress().values()) >= 1, "both were called in turn"


async def test_slots_are_handed_out_in_turn() -> None:
    """Of two users with long queues each gets the next free place after the other, however long its queue is."""
    node = Node()
    node.ask("other")
    for user, count in (("a", SLOTS), ("b", SLOTS), ("c", 40), ("d", 4), ("c", 40)):
        for _ in range(count):
            node.ask(user)
    waiting = [user for user in ("c", "d") if len(node.fair_queue._users[user].waiting) > 2]
    assert waiting == ["c", "d"]
    order: list[str] = []
    for _ in range(20):
        before = {user: len(node.fair_queue._users[user].waiting) for user in waiting}
        await node.answer(next(user for user in node.begun if node.begun[user]))
        order += [user for user in waiting if len(node.fair_queue._users[user].waiting) < before[user]]
    assert order[:6] in (["c", "d"] * 3, ["d", "c"] * 3)


async def test_a_request_that_takes_long_gives_its_place_up() -> None:
    """Requests that wait for a leader take no processor time: after a moment others have their turn."""
    node = Node()
    node.ask("other")
    for _ in range(SLOTS):
        node.ask("busy")
    turn = node.fair_queue.enter(100, "busy", node.now)
    assert turn is not None
    async with asyncio.timeout(hang_s()):
        await turn
    node.fair_queue.leave(100)
    for number in node.begun["busy"]:
        node.fair_queue.leave(number)
    assert not node.fair_queue._slots
    assert not node.fair_queue._users


@pytest.mark.parametrize("target", ["/v1/kv?prefix=a", "/v1/kv?prefix=a&min_index=1", "/v1/kv?prefix=await=1"])
async def test_a_request_that_need_not_wait_takes_its_turn(target: str) -> None:
    """Whatever its query says. Only a request that really waits gives its slot to others meanwhile."""
    async with AccessWorld(fair_requests_max=2) as world:
        world.user("busy", "read on keys:*", "read on log", "write on keys:*")
        world.user("other", "write on keys:*")
        await world.ask("other", "PUT", "/v1/kv/first", body=BODY)
        world.node.held = asyncio.Event()
        fair_queue = world.service.load.queue
        for _ in range(2):
            await world.connect().feed(request("PUT", "/v1/kv/a", *world.sign("busy"), body=BODY))
        assert len(fair_queue._slots) == 2
        wire = world.connect()
        await wire.feed(request("GET", target, *world.sign("busy")))
        await turns()
        assert len(fair_queue._users["busy"].waiting) == 1
        assert not wire.replies()
        world.node.held.set()
        while not wire.written:
            await turns()
        assert not fair_queue._slots


async def test_a_long_poll_has_no_slot_and_counts_as_a_stream_of_its_user() -> None:
    """It takes no time of the node while it waits. A user has so many of them as it may have streams."""
    async with AccessWorld(fair_requests_max=2, principal_streams_max=1) as world:
        world.user("poller", "read on log", "read on keys:*")
        world.user("other", "write on keys:*")
        await world.ask("other", "PUT", "/v1/kv/first", body=BODY)
        poll = world.connect()
        target = f"/v1/log?from={world.node.applied + 1}&wait=20000"
        await poll.feed(request("GET", target, *world.sign("poller")))
        fair_queue = world.service.load.queue
        assert not fair_queue._slots
        refused = await world.ask("poller", "GET", target)
        assert refused.status == 429
        assert "limits.principal_streams_max" in refused.problem().message
        refused = await world.ask("poller", "GET", f"/v1/kv?prefix=a&min_index={world.node.applied + 1}")
        assert refused.status == 429
        assert (await world.ask("other", "PUT", "/v1/kv/b", body=BODY)).status == 200
        while not poll.written:
            await turns()
        assert poll.replies()[0].status == 200
        assert (await world.ask("poller", "GET", "/v1/kv?prefix=a&min_index=1")).status == 200


async def test_a_client_that_has_gone_takes_no_turn() -> None:
    """Its request is passed over, and nothing of it is kept."""
    node = Node()
    node.ask("other")
    for _ in range(SLOTS):
        node.ask("busy")
    gone, next_turn = (node.fair_queue.enter(number, "busy", node.now) for number in (100, 101))
    assert gone is not None
    assert next_turn is not None
    gone.cancel()
    await node.answer("busy")
    assert next_turn.done()
    for number in (101, *node.begun["busy"]):
        node.fair_queue.leave(number)
    assert not node.fair_queue._users
    assert not node.fair_queue._queue


async def test_the_queue_of_a_user_has_a_limit() -> None:
    """Beyond it requests are refused by the name of the limit; other users' are not."""
    node = Node(waiting_max=2)
    node.ask("other")
    for _ in range(SLOTS + 2):
        node.ask("busy")
    with pytest.raises(ApiError, match="principal_waiting_max") as refused:
        node.ask("busy")
    assert refused.value.code is Code.OVER_QUOTA
    node.ask("other")
    assert len(node.begun["other"]) == 2


@pytest.mark.parametrize("fast_path", [True, False])
async def test_a_busy_user_delays_no_other_at_the_node(fast_path: bool) -> None:
    """Twenty writes of one user arrive while the node settles none: two begin. The other's write reaches the node at
    once. All are answered in the end, those that waited too; keepalives and probes never wait."""
    async with AccessWorld(fast_path=fast_path, fair_requests_max=2) as world:
        for name in ("busy", "other"):
            world.user(name, "write on keys:*")
        await world.ask("other", "PUT", "/v1/kv/first", body=BODY)
        world.node.held = asyncio.Event()
        wires = [world.connect() for _ in range(20)]
        for wire in wires:
            await wire.feed(request("PUT", "/v1/kv/a", *world.sign("busy"), body=BODY))
        service = world.service
        fair_queue = service.load.queue
        assert len(fair_queue._slots) == 2
        other = world.connect()
        await other.feed(request("PUT", "/v1/kv/b", *world.sign("other"), body=BODY))
        assert len(fair_queue._slots) == 3
        assert (await world.ask("busy", "GET", "/v1/status")).status == 200
        world.node.held.set()
        for wire in (other, *wires):
            while not wire.written:
                await turns()
            assert wire.replies()[0].status == 200
        assert service.load.open_requests == 0
        assert not fair_queue._slots
        assert not fair_queue._users
