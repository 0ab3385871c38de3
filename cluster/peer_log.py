"""What of the log the peers of a node have on their disks: asked of them, and answered to them.

Who passes a read on does it here; an answer is always from the disk of whoever was asked, so what was passed on is
never passed on again. Nobody is asked who does not know these questions, and nobody answers who is fenced: a state that
differs from the majority's made other effects of the same entries.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cluster import clock
from cluster.disk_errors import DiskError
from cluster.peer_log_frames import (
    PEER_VERSION,
    SLICE_BYTES_MAX,
    Had,
    Question,
    What,
    decode_had,
    decode_question,
    encode_had,
    encode_question,
)
from cluster.wire import ApiError, Code
from raft.codec import FRAME_READ, Frame
from raft.storage_read import RawSlice
from raft.types import GENESIS, NodeId

if TYPE_CHECKING:
    from cluster.node import Node

T = TypeVar("T")

ANSWER_S: Final = 2.0
"""So long an answer may take: a disk that others use too reads a slice in milliseconds, and stalls for a second."""
PATIENCE_S: Final = 5.0
"""So long a read is tried with peers that cannot be reached just now; as long as a client waits by default."""
PAUSE_S: Final = 0.05
"""Between two rounds through all of them."""
READS_MAX: Final = 4
"""Reads that are passed on at a time; the others wait for their turn."""
SERVED_MAX: Final = 8
"""Questions of one peer that are being answered: its reads, what it fetches, and a change of the members."""
_BUSY: Final = f"it answers {SERVED_MAX} questions of this node already"
_WAITING_MAX: Final = 1_024
"""Questions of this node that wait for an answer: readers beyond them are told to come again."""


class NoAnswer(Exception):
    """That peer gave nothing; the message says why. `is_certain`: it was heard, and has not got it."""

    def __init__(self, message: str, *, is_certain: bool = False) -> None:
        super().__init__(message)
        self.is_certain = is_certain


class PeerLog:
    """One node's. Not thread-safe: it belongs to the node's event loop."""

    def __init__(self, node: Node, boot: int) -> None:
        """`boot` counts the starts of this node: an answer to the process before is nobody's."""
        self._node = node
        self._number = boot << 32
        self._waiting: dict[int, tuple[NodeId, asyncio.Future[Had]]] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._served: Counter[NodeId] = Counter()
        self._good: NodeId | None = None  # who answered last
        self._passed_on = 0
        self._turns = asyncio.Semaphore(READS_MAX)
        self._in_vain = -PATIENCE_S  # when a read was given up for peers that were not heard
        gauge = node.metrics.gauge
        gauge("raftlog_reads_passed_on", "Slices of the log that peers gave for a reader", lambda: self._passed_on)

    # -- asking ---------------------------------------------------------------------------------------------------

    def peers(self) -> list[NodeId]:
        """Whom to ask, in this order: who answered last, then the others, the leader last: it has most to do."""
        state, node = self._node.core.state, self._node.node_id
        return sorted(state.configuration.peers(node), key=lambda peer: (peer != self._good, peer == state.leader))

    async def ask(
        self, peer: NodeId, what: What, first: int = 0, last: int = 0, bytes_max: int = 0, *,
        timeout_s: float | None = None,
    ) -> Had:  # fmt: skip
        """What that peer says. Raises NoAnswer."""
        transport = self._node.transport
        if not transport.is_bulk_up(peer):
            raise NoAnswer("the link is down")
        if (version := transport.version_of(peer)) < PEER_VERSION:
            why = f"it speaks version {version} of the peer protocol, which has no such question: upgrade it"
            raise NoAnswer(why if version else "it has not dialled this node yet", is_certain=bool(version))
        if len(self._waiting) >= _WAITING_MAX:
            raise NoAnswer(f"{_WAITING_MAX} questions wait already")
        self._number = number = self._number + 1
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Had] = loop.create_future()
        self._waiting[number] = (peer, future)
        timer = loop.call_later(timeout_s or ANSWER_S, _give_up, future, timeout_s or ANSWER_S)
        try:
            if not transport.send_bulk(peer, encode_question(Question(number, what, first, last, bytes_max))):
                raise NoAnswer("the link is full (limits.bulk_bytes_max)")
            transport.flush()
            had = await future
        finally:
            timer.cancel()
            del self._waiting[number]
        if had.reason:
            raise NoAnswer(had.reason, is_certain=had.reason != _BUSY)
        return had

    async def slice(self, peer: NodeId, first: int, last: int, bytes_max: int = SLICE_BYTES_MAX) -> RawSlice:
        """Entries from the one that holds `first`, from that peer; not empty. Raises NoAnswer."""
        raw = (await self.ask(peer, What.SLICE, first, last, min(bytes_max, SLICE_BYTES_MAX))).slice
        if raw is None or not raw.first <= first < raw.next:
            raise NoAnswer(f"it gave no entry that holds index {first}", is_certain=True)
        return raw

    async def read(self, first: int, last: int, bytes_max: int, is_wanted: Callable[[], bool]) -> RawSlice | None:
        """As `slice`, from whichever peer has it; None once it is not wanted any more. Raises ApiError."""

        async def ask(peer: NodeId) -> RawSlice:
            return await self.slice(peer, first, last, bytes_max)

        raw = await self._of_anyone(ask, is_wanted, f"index {first}")
        self._passed_on += raw is not None
        return raw

    async def find_time(self, time_ms: int, is_wanted: Callable[[], bool]) -> int | None:
        """The first index of that time or later, as a peer says whose log reaches back to where this cluster's does, or
        to before what it found. Raises ApiError."""

        async def ask(peer: NodeId) -> int:
            had = await self.ask(peer, What.TIME, time_ms)
            if had.first <= had.begins and had.begins > self._node.machine.oldest:
                raise NoAnswer(f"its log begins at {had.begins}", is_certain=True)
            return had.first

        return await self._of_anyone(ask, is_wanted, f"time {time_ms}")

    async def _of_anyone(
        self, ask: Callable[[NodeId], Coroutine[Any, Any, T]], is_wanted: Callable[[], bool], what: str
    ) -> T | None:
        """What the first peer says that has it. Who cannot be heard is asked again for a while, by one read in that
        time: others, who come meanwhile, need not all wait. When all were heard waiting is of no use."""
        until = clock.monotonic() + PATIENCE_S
        if until - self._in_vain < 2 * PATIENCE_S:
            until = 0.0
        while is_wanted():
            told: dict[NodeId, NoAnswer] = {}
            for peer in self.peers():
                try:
                    async with self._turns:
                        answer = await ask(peer)
                except NoAnswer as error:
                    told[peer] = error
                else:
                    self._good = peer
                    return answer
            if all(each.is_certain for each in told.values()):
                raise self._nobody(what, told)
            if clock.monotonic() >= until or self._node.is_stopping:
                self._in_vain = clock.monotonic() if until else self._in_vain
                raise self._nobody(what, told)
            await asyncio.sleep(PAUSE_S)
        return None

    def _nobody(self, what: str, told: dict[NodeId, NoAnswer]) -> ApiError:
        node = self._node
        why = "; ".join(f"node {peer}: {reason}" for peer, reason in sorted(told.items())) or "it has none"
        return ApiError(
            Code.DEADLINE,
            f"node {node.node_id} was built from a snapshot, its disk has the log from {node.disk.oldest} on, and no "
            f"peer gave {what} ({why}): ask again, or another node",
        )

    # -- answering ------------------------------------------------------------------------------------------------

    def take(self, peer: NodeId, frame: Frame) -> None:
        """A question or an answer. Raises Corrupt."""
        if frame.kind == FRAME_READ:
            question = decode_question(frame)
            if self._served[peer] >= SERVED_MAX:
                self._reply(peer, self._had(question, _BUSY))
                return
            self._served[peer] += 1
            task = asyncio.get_running_loop().create_task(self._serve(peer, question))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
            return
        had = decode_had(frame)
        asked, future = self._waiting.get(had.number, (None, None))
        if asked == peer and future is not None and not future.done():
            future.set_result(had)

    async def _serve(self, peer: NodeId, question: Question) -> None:
        try:
            had = await self._answer(question)
        except (ApiError, DiskError, OSError, asyncio.CancelledError) as error:
            had = self._had(question, str(error) or "it is being stopped")
        except Exception as error:  # a defect in one answer ends that answer alone
            had = self._had(question, f"it could not answer: {type(error).__name__}: {error}")
            self._node.logger.error("peer_answer_failed", peer=peer, exc_info=error)
        finally:
            self._served[peer] -= 1
        self._reply(peer, had)

    async def _answer(self, question: Question) -> Had:
        node = self._node
        if node.is_fenced or node.is_stopping:
            return self._had(question, "it is fenced" if node.is_fenced else "it is being stopped")
        match question.what:
            case What.PIECE:
                piece = node.disk.backfill.piece(question.first)
                if piece is not None:
                    return self._had(question)._replace(first=piece[0], before=piece[1])
            case What.SLICE:
                raw = await node.reader.own(question.first, question.last, min(question.bytes_max, SLICE_BYTES_MAX))
                if raw.next > raw.first:
                    return self._had(question)._replace(slice=raw)
            case What.TIME:
                return self._had(question)._replace(first=await node.reader.own_time(question.first))
            case What.STATE:
                return self._had(question, "files of its own are damaged" if node.damage.is_known else "")
        return self._had(question, f"its disk has no index {question.first}: it begins at {node.disk.oldest}")

    def _had(self, question: Question, reason: str = "") -> Had:
        node = self._node
        return Had(question.number, reason, node.machine.oldest, node.disk.oldest, node.applied, 0, GENESIS)

    def _reply(self, peer: NodeId, had: Had) -> None:
        self._node.transport.send_bulk(peer, encode_had(had))
        self._node.transport.flush()

    # -- life -----------------------------------------------------------------------------------------------------

    def lost(self, peer: NodeId) -> None:
        """The link to that peer closed: what was asked there may never be answered."""
        for asked, future in self._waiting.values():
            if asked == peer and not future.done():
                future.set_exception(NoAnswer(f"the link to node {peer} closed"))

    def close(self) -> None:
        """Nothing is asked or answered any more."""
        for peer in {peer for peer, _ in self._waiting.values()}:
            self.lost(peer)
        for task in self._serving:
            task.cancel()


def _give_up(future: asyncio.Future[Had], after_s: float) -> None:
    if not future.done():
        future.set_exception(NoAnswer(f"it has not answered within {after_s:g} s"))
