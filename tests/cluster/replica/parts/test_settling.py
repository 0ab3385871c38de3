"""Every waiting write is settled once, by what became of its place, whatever comes first: the answer or the entry."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace

from hypothesis import Phase, given, settings, strategies as st

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.protocol.forward_frames import Answers
from raftlog.cluster.protocol.request import Inflight
from raftlog.cluster.replica.parts import writes
from raftlog.statemachine.commands import Result
from raftlog.statemachine.effects import RequestEffect
from tests.cluster.protocol.test_proposals import applied, future_of, propose, request
from tests.cluster.replica.parts.test_requests import replica_of

TERM, LEADER = 4, 3


async def history(random: Random) -> None:
    """A log of one term, with entries of this node, of its forwarded writes and of others."""
    replica = replica_of()
    pending = replica.writes.pending
    entries: list[tuple[int, Inflight | None]] = []  # the last index of each, and the write of this node in it
    answers: list[tuple[int, int]] = []
    index = 7
    for _ in range(random.randrange(1, 9)):
        size, kind = random.randrange(1, 4), random.choice(["own", "forwarded", "another"])
        own = None if kind == "another" else request(*[b"v"] * size)
        if own is not None and kind == "own":
            propose(pending, TERM, index + 1, own)
        elif own is not None:
            answers.append((pending.forwarding([own], LEADER), index + 1))
        index += size
        entries.append((index, own))
    at, covered = 0, 7  # the entries that are applied or covered by a snapshot, and the newest snapshot
    is_applied: dict[int, bool] = {}
    effects: dict[int, tuple[RequestEffect | None, int]] = {}
    replica.applier.recent = SimpleNamespace(effect_of=lambda last: effects.get(last, (None, 0)))
    while at < len(entries) or answers:
        if answers and (at == len(entries) or random.random() < 0.5):
            answer = answers.pop(random.randrange(len(answers)))
            writes.take_answers(replica, LEADER, Answers(TERM, [answer], []))
        elif random.random() < 0.2:
            before, at = at, random.randrange(at, len(entries)) + 1
            covered = entries[at - 1][0]
            for last, _ in entries[before:at]:
                is_applied[last] = False
            pending.skipped(covered, TERM)
        else:
            last, own = entries[at]
            count = last - (entries[at - 1][0] if at else 7)
            is_applied[last], effects[last] = True, (RequestEffect(Result.APPLIED, last), TERM)
            applied(pending, last, TERM, count)
            at += 1
        waiting = {number for number, _ in answers}
        for last, own in entries[:at]:
            assert own is None or own.number in waiting or future_of(own).done(), f"{last} is applied, and known"
        assert all(own is None or not future_of(own).done() for _, own in entries[at:])
    for last, own in entries:
        if own is None:
            continue
        if is_applied[last]:
            assert future_of(own).result().last == last
        else:
            error = future_of(own).exception()
            assert isinstance(error, ApiError)
            assert error.code in (Code.LEADER_LOST, Code.TIMEOUT)
    assert pending.is_empty


@given(st.randoms(use_true_random=False))
@settings(max_examples=100, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_every_write_is_settled_by_what_became_of_its_place(random: Random) -> None:
    """Own and forwarded writes; the leader's answer comes before or after the entry, or after a snapshot that covers
    it, which may end at the very entry. A write with a known place is settled when that is applied, and not earlier."""
    asyncio.run(history(random))
