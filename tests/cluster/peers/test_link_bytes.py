"""Random loads of one link: what waits for a slow peer is bounded, whole and in order."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, strategies as st

from raftlog.cluster.peers.dialled import Link
from raftlog.cluster.peers.hello import Purpose

BYTES_MAX = 1_000
STEPS = st.one_of(
    st.tuples(st.just("send"), st.sampled_from([1, 10, 300, 700, 1_000, 1_500])),
    st.tuples(st.just("flush"), st.just(0)),
    st.tuples(st.just("take"), st.sampled_from([1, 200, 5_000])),
)


class SlowPeer:
    """A connection. The test says when the peer takes bytes."""

    def __init__(self) -> None:
        self.written = b""
        self.taken = 0

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return len(self.written) - self.taken

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: list[bytes]) -> None:
        self.written += b"".join(parts)


@given(st.lists(STEPS, max_size=60))
def test_a_link_takes_a_frame_while_what_waits_has_room_and_no_other(steps: list[tuple[str, int]]) -> None:
    """Bytes that the peer has not taken count like those of this turn. A frame that is alone always goes."""

    async def run() -> None:
        owner = SimpleNamespace(queued=lambda _: None)
        link = Link(cast(Any, owner), 2, Purpose.CONSENSUS, "127.0.0.1:1", "", BYTES_MAX)
        link.task.cancel()
        peer = SlowPeer()
        link._transport = cast(Any, peer)
        accepted, queued = b"", 0
        for number, (what, size) in enumerate(steps):
            if what == "send":
                frame = bytes([number]) * size
                waiting = peer.get_write_buffer_size() + queued
                has_room = not waiting or waiting + size <= BYTES_MAX
                assert link.send(frame[: size // 2], frame[size // 2 :]) == has_room
                if has_room:
                    accepted, queued = accepted + frame, queued + size
                continue
            link.flush()  # the peer takes bytes between two turns, and each turn ends with a flush
            queued = 0
            assert peer.written == accepted
            if what == "take":
                peer.taken = min(len(peer.written), peer.taken + size)

    asyncio.run(run())
