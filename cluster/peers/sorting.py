"""Sorts the frames of one accepted connection into messages and requests, and drops what must not count; pure.

`raftlog.cluster.peers.accepted` has one sorter for each connection whose hello is believed, or at least heard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from raftlog.cluster.peers.hello import Hello, Purpose
from raftlog.raft.codec.checks import Corrupt
from raftlog.raft.codec.frame import FRAME_FORWARD, FRAME_HELLO, FRAME_MESSAGE, FRAME_READ, Frame
from raftlog.raft.codec.message import decode_message
from raftlog.raft.messages import InstallSnapshot, Message, is_promise


class SortedFrames(NamedTuple):
    """What counts of some frames."""

    messages: list[Message]
    requests: list[Frame]
    has_questions: bool  # clients of the sender wait for an answer


class Sorter:
    """Knows which forwarded requests came on this connection."""

    def __init__(self) -> None:
        self._forwarded: dict[int, int] = {}  # newest forwarded request of each Raft group

    def sort(self, hello: Hello, frames: Sequence[Frame], *, is_heard: bool) -> SortedFrames:
        """What counts of these frames. `is_heard`: the hello is not proved, so promises and answers do not count.

        Raises Corrupt or UnknownVersion if a frame does not belong on a link of that hello.
        """
        is_bulk, has_questions = hello.purpose is Purpose.BULK, False
        messages: list[Message] = []
        requests: list[Frame] = []
        for frame in frames:
            if is_bulk and frame.kind not in (FRAME_HELLO, FRAME_MESSAGE):
                if frame.kind == FRAME_FORWARD:
                    self._check_order(frame)
                if frame.kind in (FRAME_FORWARD, FRAME_READ):
                    has_questions = True
                elif is_heard:
                    continue  # its sender is not proved: the answer may be another node's
                requests.append(frame)
                continue
            if frame.kind != FRAME_MESSAGE:
                raise Corrupt(f"a frame of kind {frame.kind} on the {hello.purpose.name.lower()} link")
            message = decode_message(frame)
            if message.sender != hello.sender:
                raise Corrupt(f"a message of node {message.sender} on the link of node {hello.sender}")
            if is_bulk and not isinstance(message, InstallSnapshot):
                raise Corrupt("a consensus message on the bulk link")
            if not (is_heard and is_promise(message)):  # a vote or acknowledgement needs a proved sender
                messages.append(message)
        return SortedFrames(messages, requests, has_questions)

    def _check_order(self, frame: Frame) -> None:
        """Raises Corrupt when requests come a second time or not in the order of their numbers.

        TCP never does that, but a proxy between two nodes may. A request outside a session that came twice would be
        carried out twice.
        """
        match frame.header:
            case (_, int(first), tuple(deadlines)):
                newest = self._forwarded.get(frame.shard, 0)
                if first <= newest:
                    raise Corrupt(f"request {first} was passed on behind {newest}: a frame came twice or late")
                self._forwarded[frame.shard] = first + len(deadlines) - 1
