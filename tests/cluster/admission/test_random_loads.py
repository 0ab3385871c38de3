"""Random loads of a node: the queue, the quota, the budgets of bytes and the logins keep their accounts."""

from __future__ import annotations

import asyncio
from math import ceil
from unittest.mock import patch

from hypothesis import example, given, strategies as st

from raftlog.cluster.admission import budget as budgets, logins
from raftlog.cluster.admission.budget import Budget, Share
from raftlog.cluster.admission.logins import Logins
from raftlog.cluster.admission.queue import ALONE_S, SLOT_S, FairQueue
from raftlog.cluster.admission.quota import Meter
from raftlog.cluster.api.errors import ApiError
from raftlog.cluster.runtime import clock

KIB = 1 << 10
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


@example([("ask", "b"), ("ask", "a"), ("ask", "a"), ("ask", "c")])  # the last one waits, and goes
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


@example([(0.0, 51, 150), (0.0, 0, 0)], 1)  # over both quotas
@example([(0.5, 100, 150), (0.125, 0, 0)], 1)  # bytes again, before their time has passed
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


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-2, 8), st.booleans()), max_size=40))
def test_a_budget_gives_room_by_the_whole_that_a_holder_has(steps: list[tuple[int, int, bool]]) -> None:
    """A small holder may use all of the budget, a larger one three quarters of it, however slowly it grows. A
    holder without another one always has room. Others may use the bytes that a holder gives back."""
    grows = [(1, 1, True), *[(0, 7, False)] * 5]  # past three quarters, beside another, in pieces that are small ones
    budget = Budget("bodies", 20 * KIB, lambda: None)
    shares, sizes = [Share(budget) for _ in range(3)], [0] * 3
    with patch.object(budgets, "SMALL_BYTES", 4 * KIB):
        for holder, more, is_there in (*steps, *grows):
            size = max(0, sizes[holder] + more * KIB // 2)
            others = sum(sizes) - sizes[holder]
            has_room = size <= sizes[holder] or not others or others + size <= (20 if size <= 4 * KIB else 15) * KIB
            if is_there:
                shares[holder].keep(size)
            else:
                assert shares[holder].hold(size) == has_room
            if is_there or has_room:
                sizes[holder] = size
            assert (budget.used, [share.size for share in shares]) == (sum(sizes), sizes)


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 5, 20]), st.sampled_from(["open", "use", "use", "close"]), st.integers(0, 9)),
        max_size=60,
    )
)
def test_a_login_ends_for_its_age_its_silence_or_because_it_was_silent_longest(
    steps: list[tuple[int, str, int]],
) -> None:
    """The twin is a list of all that were ever opened, each with its times."""
    now = 0.0
    with patch.multiple(logins, LOGINS_MAX=5, USER_MAX=2, LIFE_S=100.0, SILENCE_S=20.0):
        held = Logins()
        opened: list[str] = []  # five at the start, of four users: then each one more ends another
        users: dict[str, str] = {}
        began: dict[str, float] = {}
        used: dict[str, tuple[float, int]] = {}  # of those that have not ended: when, and which use it was
        for number, (pause_s, what, of) in enumerate([*[(0, "open", user) for user in range(5)], *steps]):
            now += pause_s
            if what == "open":
                user = "abcd"[of % 4]
                own = [each for each in used if users[each] == user]
                among = own if len(own) >= 2 else [*used] if len(used) >= 5 else []
                if among:
                    del used[min(among, key=used.__getitem__)]
                secret = held.open(user, f"token {number}", now)
                opened.append(secret)
                users[secret], began[secret], used[secret] = user, now, (now, number)
            elif opened:
                secret = opened[of % len(opened)]
                if what == "close":
                    held.close(secret)
                    used.pop(secret, None)
                    continue
                is_there = secret in used and now < began[secret] + 100 and now < used[secret][0] + 20
                assert (held.token(secret, now) is not None) == is_there
                if is_there:
                    used[secret] = (now, number)
                else:
                    used.pop(secret, None)
