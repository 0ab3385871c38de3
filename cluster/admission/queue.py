"""Orders the requests of users that compete at a node, so that one busy user does not delay the others.

While one user sends requests alone, none of them waits. When several users send requests within ALONE_S, only so many
requests are in progress (limits.fair_requests_max), and further ones wait. Each slot that becomes free goes to the
next user with a request that waits, in turn. A user that has less than an equal part of the slots does not wait at
all, so a user that sends little never stands behind the many requests of another one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.runtime import clock

ALONE_S: Final = 1.0
"""Seconds without a request of another user, after which a user counts as alone."""
SLOT_S: Final = 0.25
"""Seconds for which a request keeps its slot, while others wait. One that takes longer waits for a leader or a slow
disk, and takes no processor time."""


class _User:
    """The requests of one user, while several users send some."""

    __slots__ = ("slots", "waiting")

    def __init__(self) -> None:
        self.slots = 0  # requests in progress
        self.waiting: deque[tuple[asyncio.Future[None], object]] = deque()


class FairQueue:
    """The requests in progress at one node, and those that wait. Belongs to the event loop."""

    def __init__(self, slots_max: int, waiting_max: int) -> None:
        """Most requests in progress while users compete, and most requests of one user that wait."""
        self._slots_max, self._waiting_max = slots_max, waiting_max
        self._loop = asyncio.get_running_loop()
        self._slots: dict[object, tuple[str, float]] = {}  # a request in progress -> its user, and its begin
        self._users: dict[str, _User] = {}  # those with a slot or a request that waits
        self._queue: deque[str] = deque()  # users with requests that wait, in the order of their turns
        self._newest = ""  # the user of the newest request
        self._shared_until = 0.0  # until then another user may send a request, too
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, call: object, user: str, now: float) -> asyncio.Future[None] | None:
        """Gives a request its slot, until `leave`; or returns the future of its turn, for which it waits first. Raises
        ApiError over_quota. `now`: seconds of the event loop's clock."""
        if user != self._newest:
            if self._newest:
                self._shared_until = now + ALONE_S
            self._newest = user
        if now >= self._shared_until and not self._queue:
            return None
        own = self._users.get(user)
        if own is None:
            own = self._users[user] = _User()
        if not own.waiting and (
            len(self._slots) < self._slots_max or own.slots < max(1, self._slots_max // len(self._users))
        ):
            self._begin(call, user, now)
            return None
        if len(own.waiting) >= self._waiting_max:
            raise ApiError(
                Code.OVER_QUOTA,
                f"{len(own.waiting)} requests of user {user!r} wait for their turn at this node "
                "(limits.principal_waiting_max): wait for their answers",
                retry_after=1,
            )
        if not own.waiting:
            self._queue.append(user)
        turn: asyncio.Future[None] = self._loop.create_future()
        own.waiting.append((turn, call))
        if self._timer is None:
            self._timer = self._loop.call_later(SLOT_S, self._free_late)
        return turn

    def leave(self, call: object) -> None:
        """The request is answered, or its client has gone."""
        if self._slots and call in self._slots:
            self._end(call)
            self._call_next()

    def _begin(self, call: object, user: str, now: float) -> None:
        self._slots[call] = (user, now)
        self._users[user].slots += 1

    def _end(self, call: object) -> None:
        user, _ = self._slots.pop(call)
        own = self._users[user]
        own.slots -= 1
        if not own.slots and not own.waiting:
            del self._users[user]

    def _call_next(self) -> None:
        """Gives the free slots to the users in the queue, one after the other."""
        while self._queue and len(self._slots) < self._slots_max:
            user = self._queue.popleft()
            own = self._users[user]
            turn, call = own.waiting.popleft()
            if own.waiting:
                self._queue.append(user)
            if not turn.done():  # else its client has gone
                self._begin(call, user, clock.monotonic())
                turn.set_result(None)
            elif not own.slots and not own.waiting:
                del self._users[user]

    def _free_late(self) -> None:
        """Requests that take long give up their slots."""
        self._timer = None
        late = clock.monotonic() - SLOT_S
        for call in [call for call, (_, began) in self._slots.items() if began <= late]:
            self._end(call)
        self._call_next()
        if self._queue:
            self._timer = self._loop.call_later(SLOT_S, self._free_late)
