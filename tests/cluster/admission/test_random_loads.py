"""Random loads of a node: the queue of users and the quota of a user keep their accounts, and lose no place."""

from __future__ import annotations

import asyncio
from math import ceil
from unittest.mock import patch

from hypothesis import given, strategies as st

from raftlog.cluster.admission.queue import ALONE_S, SLOT_S, FairQueue
from raftlog.cluster.admission.quota import Meter
from raftlog.cluster.api.errors import ApiError
from raftlog.cluster.runtime import clock

SLOTS = 3
WAITING = 4
STEPS = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from("abcd")),
    st.tuples(st.sampled_from(["answer", "go"]), st.integers(0, 20)),
    st.tuples(st.just("pass"), st.sampled_from([0.01, SLOT_S, ALONE_S])),
)
FULL = [("ask", user) for user in "abaabb"]
"""Two users have all places, and each has more requests that wait."""


class Load:
    """Requests of a few users at a queue, whose clients may go at any time."""

    def __init__(self) -> None:
        self.queue = FairQueue(SLOTS, WAITING)
        self.now = 100.0
        self.asked: dict[int, asyncio.Future[None] | None] = {}  # unanswered requests, with their turns
        self.number = 0

    def step(self, what: str, of: object) -> None:
        """One thing that happens."""
        if what == "ask":
            self.number += 1
            try:
                self.asked[self.number] = self.queue.enter(self.number, str(of), self.now)
            except ApiError:
                assert len(self.queue._users[str(of)].waiting) == WAITING
        elif what == "pass":
            assert isinstance(of, float)
            self.now += of
            self.queue._free_late()
        elif self.asked:
            assert isinstance(of, int)
            self.end(list(self.asked)[of % len(self.asked)], is_gone=what == "go")

    def end(self, number: int, *, is_gone: bool) -> None:
        """A request is answered, if it has begun; or its client has gone."""
        turn = self.asked[number]
        if turn is None or turn.done() or is_gone:
            if turn is not None:
                turn.cancel()
            del self.asked[number]
            self.queue.leave(number)

    def check(self) -> None:
        """The table has the users with a place or a request that waits, and no other. No request waits beside a free
        place."""
        queue = self.queue
        held = [user for user, _ in queue._slots.values()]
        waiting = {user for user, each in queue._users.items() if each.waiting}
        assert {user: each.slots for user, each in queue._users.items() if each.slots} == {
            user: held.count(user) for user in held
        }
        assert queue._users.keys() == {*held, *waiting}
        assert sorted(queue._queue) == sorted(waiting)
        assert not waiting or len(queue._slots) >= SLOTS
        assert not waiting or queue._timer is not None


@given(st.lists(STEPS, max_size=60))
def test_the_queue_knows_those_that_have_a_place_or_wait_and_nobody_else(steps: list[tuple[str, object]]) -> None:
    """A user that stays in the table would make the equal part of the others smaller, for ever."""

    async def run() -> None:
        load = Load()
        with patch.object(clock, "monotonic", lambda: load.now):
            for what, of in (*FULL, *steps):
                load.step(what, of)
                load.check()
            while load.asked:
                load.end(next(iter(load.asked)), is_gone=True)
                load.check()
        assert not load.queue._users
        assert not load.queue._slots

    asyncio.run(run())


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 1 / 64, 1 / 8, 0.5, 2.0]), st.integers(0, 150), st.integers(0, 150)),
        max_size=80,
    ),
    st.integers(1, 5),
)
def test_a_user_gets_its_quota_in_every_span_and_no_more(steps: list[tuple[float, int, int]], most: int) -> None:
    """In a span of any length it may send as many requests as in that time, and one second's worth besides. Bytes may
    be more by the size of the last request. A user that was refused may send after `retry_after`."""
    now, bytes_max = 0.0, 100
    with patch.object(clock, "monotonic", lambda: now):
        meter = Meter("u", most, bytes_max, 1)
        taken: list[tuple[float, int]] = []
        for pause_s, size, answer in steps:
            now += pause_s
            try:
                meter.take(size)
            except ApiError as error:
                now += error.more["retry_after"]
                meter.take(size)
            meter.charge(answer)
            taken.append((now, size + answer))
    for first, (since, _) in enumerate(taken):
        for last in range(first, len(taken)):
            span_s = taken[last][0] - since
            assert last - first + 1 <= ceil(most * (1 + span_s) + 1e-6)
            assert sum(size for _, size in taken[first:last]) <= bytes_max * (1 + span_s) + 1e-6
