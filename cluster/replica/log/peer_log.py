"""Reads log ranges that this node no longer has on disk from its peers, and answers their questions in turn.

`raftlog.cluster.replica.log.log_reader` and the backfill ask here. A peer answers only from its own disk, so no
question is forwarded twice (`raftlog.cluster.replica.parts.serving`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.protocol.log_frames import (
    SLICE_BYTES_MAX,
    PeerLogReply,
    Question,
    QuestionKind,
    encode_question,
)
from raftlog.cluster.replica.log.applier import Applier
from raftlog.cluster.replica.ports import Links
from raftlog.cluster.runtime import clock
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.types import NodeId
from raftlog.raft.wal.reading import RawSlice

T = TypeVar("T")

ANSWER_S: Final = 2.0
"""Longest wait for an answer, in seconds. A busy disk reads a slice in milliseconds, and may stall for a second."""
PATIENCE_S: Final = 5.0
"""How long a read of a peer's log takes at most, in seconds; a client waits as long by default."""
PAUSE_S: Final = 0.05
"""Pause between two rounds through all peers, in seconds."""
READS_MAX: Final = 4
"""Most questions to peers at a time; further reads wait for their turn."""
SERVED_MAX: Final = 8
"""Most questions of one peer under way: its clients' reads, its backfill, and a change of the members."""
BUSY: Final = f"it answers {SERVED_MAX} questions of this node already"
_WAITING_MAX: Final = 1_024
"""Most questions of this node that wait for an answer. Further readers get an error and may ask again."""


class NoAnswer(Exception):
    """That peer gave no entries; the message says why. `is_certain`: the peer answered that it does not have them."""

    def __init__(self, message: str, *, is_certain: bool = False) -> None:
        super().__init__(message)
        self.is_certain = is_certain


class PeerLog:
    """The questions of one replica to its peers. Belongs to the event loop."""

    def __init__(self, node: NodeId, boot: int, *, core: RaftCore, links: Links, disk: Disk, applier: Applier) -> None:
        """`boot` counts the starts of this node. Answers to an earlier process are dropped."""
        self.passed_on = 0  # slices that peers gave for this node's readers
        self._node, self._core, self._links, self._disk, self._applier = node, core, links, disk, applier
        self._number = boot << 32
        self._waiting: dict[int, tuple[NodeId, asyncio.Future[PeerLogReply]]] = {}
        self._good: NodeId | None = None  # the peer that answered last
        self._turns = asyncio.Semaphore(READS_MAX)
        self._in_vain = -PATIENCE_S  # when a read was given up because peers did not answer
        self._is_stopping = False

    # -- asking ---------------------------------------------------------------------------------------------------

    def peers(self) -> list[NodeId]:
        """The peers to ask, in order: the peer that answered last, then the others, and the busy leader last."""
        state, node = self._core.state, self._node
        return sorted(state.configuration.peers(node), key=lambda peer: (peer != self._good, peer == state.leader))

    async def ask(
        self,
        peer: NodeId,
        what: QuestionKind,
        first: int = 0,
        last: int = 0,
        bytes_max: int = 0,
        *,
        timeout_s: float | None = None,
    ) -> PeerLogReply:
        """Asks that peer and returns its answer. Raises NoAnswer."""
        links = self._links
        if not links.is_bulk_up(peer):
            raise NoAnswer("the link is down")
        if not links.has_dialled(peer):
            raise NoAnswer("it has not dialled this node yet")
        if len(self._waiting) >= _WAITING_MAX:
            raise NoAnswer(f"{_WAITING_MAX} questions wait already")
        self._number = number = self._number + 1
        loop = asyncio.get_running_loop()
        future: asyncio.Future[PeerLogReply] = loop.create_future()
        self._waiting[number] = (peer, future)
        timer = loop.call_later(timeout_s or ANSWER_S, _give_up, future, timeout_s or ANSWER_S)
        try:
            if not links.send_bulk(peer, encode_question(Question(number, what, first, last, bytes_max))):
                raise NoAnswer("the link is full (limits.bulk_bytes_max)")
            links.flush()
            had = await future
        finally:
            timer.cancel()
            del self._waiting[number]
        if had.reason:
            raise NoAnswer(had.reason, is_certain=had.reason != BUSY)
        return had

    async def slice(self, peer: NodeId, first: int, last: int, bytes_max: int = SLICE_BYTES_MAX) -> RawSlice:
        """Entries of that peer, from the one that holds `first`; not empty. Raises NoAnswer."""
        raw = (await self.ask(peer, QuestionKind.SLICE, first, last, min(bytes_max, SLICE_BYTES_MAX))).slice
        if raw is None or not raw.first <= first < raw.next:
            raise NoAnswer(f"it gave no entry that holds index {first}", is_certain=True)
        return raw

    async def read(self, first: int, last: int, bytes_max: int, is_wanted: Callable[[], bool]) -> RawSlice | None:
        """As `slice`, from any peer that has it. None once the caller does not want it any more. Raises ApiError."""

        async def ask(peer: NodeId) -> RawSlice:
            return await self.slice(peer, first, last, bytes_max)

        raw = await self._of_anyone(ask, is_wanted, f"index {first}")
        self.passed_on += raw is not None
        return raw

    async def find_time(self, time_ms: int, is_wanted: Callable[[], bool]) -> int | None:
        """The first index with that time or a later one. Raises ApiError.

        A peer counts only if its log begins at the oldest index of the cluster, or before the index that it found. If
        it found none, it counts only if it has applied all that comes before this disk's first index.
        """

        async def ask(peer: NodeId) -> int:
            had = await self.ask(peer, QuestionKind.TIME, time_ms)
            if had.first <= had.begins and had.begins > self._applier.machine.oldest:
                raise NoAnswer(f"its log begins at {had.begins}", is_certain=True)
            if had.first > had.applied and had.applied + 1 < self._disk.oldest:
                raise NoAnswer(f"it has applied the log up to {had.applied} only", is_certain=True)
            return had.first

        return await self._of_anyone(ask, is_wanted, f"time {time_ms}")

    async def _of_anyone(
        self, ask: Callable[[NodeId], Coroutine[Any, Any, T]], is_wanted: Callable[[], bool], what: str
    ) -> T | None:
        """The answer of the first peer that has the entries.

        Peers that cannot be reached are asked again until `PATIENCE_S` are over. After that, later reads ask each peer
        once for a while. If all peers answered that they do not have the entries, the read fails at once.
        """
        reasons: dict[NodeId, NoAnswer] = {}
        task = asyncio.get_running_loop().create_task(self._first(ask, is_wanted, reasons))
        try:
            # Each silent peer takes ANSWER_S, and the read waits for its turns, too.
            await asyncio.wait({task}, timeout=PATIENCE_S)
            if task.done() and (found := task.result()) is not None:
                return found
        finally:
            task.cancel()
        if not is_wanted():
            return None
        if not all(each.is_certain for each in reasons.values()) and not self._is_hasty():
            self._in_vain = clock.monotonic()
        raise self._nobody(what, reasons)

    async def _first(
        self,
        ask: Callable[[NodeId], Coroutine[Any, Any, T]],
        is_wanted: Callable[[], bool],
        reasons: dict[NodeId, NoAnswer],
    ) -> T | None:
        """The answer of the first peer that has the entries; None if there is none, `reasons` says why."""
        while is_wanted():
            reasons.clear()
            reasons.update(dict.fromkeys(self.peers(), NoAnswer(f"no answer within {PATIENCE_S:g} s")))
            for peer in list(reasons):
                try:
                    async with self._turns:
                        answer = await ask(peer)
                except NoAnswer as error:
                    reasons[peer] = error
                else:
                    self._good = peer
                    return answer
            if all(each.is_certain for each in reasons.values()) or self._is_hasty() or self._is_stopping:
                return None
            await asyncio.sleep(PAUSE_S)
        return None

    def _is_hasty(self) -> bool:
        """Whether a read was given up lately because peers did not answer."""
        return clock.monotonic() - self._in_vain < PATIENCE_S

    def _nobody(self, what: str, reasons: dict[NodeId, NoAnswer]) -> ApiError:
        why = "; ".join(f"node {peer}: {reason}" for peer, reason in sorted(reasons.items())) or "it has none"
        return ApiError(
            Code.DEADLINE,
            f"node {self._node} was built from a snapshot, its disk has the log from {self._disk.oldest} on, and no "
            f"peer gave {what} ({why}): ask again, or another node",
        )

    def take(self, peer: NodeId, had: PeerLogReply) -> None:
        """Takes a peer's answer."""
        asked, future = self._waiting.get(had.number, (None, None))
        if asked == peer and future is not None and not future.done():
            future.set_result(had)

    # -- life -----------------------------------------------------------------------------------------------------

    def lost(self, peer: NodeId) -> None:
        """The link to that peer closed: its answers may never arrive."""
        for asked, future in self._waiting.values():
            if asked == peer and not future.done():
                future.set_exception(NoAnswer(f"the link to node {peer} closed"))

    def stop(self) -> None:
        """The node is stopping: no question is repeated any more."""
        self._is_stopping = True

    def close(self) -> None:
        """Fails all questions that wait."""
        for peer in {peer for peer, _ in self._waiting.values()}:
            self.lost(peer)


def _give_up(future: asyncio.Future[PeerLogReply], after_s: float) -> None:
    if not future.done():
        future.set_exception(NoAnswer(f"it has not answered within {after_s:g} s"))
