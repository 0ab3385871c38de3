"""Whatever a follower answers: its leader goes on, and sends it a bounded number of messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final

import pytest

from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.invariants import check_state
from raftlog.raft.consensus.log import Log
from raftlog.raft.consensus.roles import Leader
from raftlog.raft.messages import AppendEntries, AppendEntriesReply
from raftlog.raft.types import EntryKind
from tests.raft.consensus.test_recall import OPTIONS, a_leader, acknowledge, outputs, sent
from tests.raft.lab import at

ENTRIES: Final = 20
MESSAGES_MAX: Final = ENTRIES + 6
"""Messages to one follower per heartbeat: a question for each entry where it leads back one by one, and some more."""

ODD: Final[dict[str, Callable[[Random, Log, int], tuple[int, int]]]] = {
    "one back": lambda random, log, prev: (max(0, prev - 1), log.term_at(prev - 1) or 0),
    "the same": lambda random, log, prev: (prev, log.term_at(prev) or 0),
    "nothing": lambda random, log, prev: (0, 0),
    "any place": lambda random, log, prev: ((hint := random.randrange(log.last.index + 1)), log.term_at(hint) or 0),
    "anything": lambda random, log, prev: (
        random.choice((0, prev, prev + 1, log.last.index + 5, 2**53 - 1)),
        random.choice((0, 1, 2, 9, 2**53 - 1)),
    ),
}
"""Where a follower may say that its log ends."""


def ended(core: RaftCore, random: Random, kind: str) -> Counter[int]:
    """Three seconds in which node 2 rejects most messages with such hints, and accepts some at any place, each once or
    twice; the messages to it by heartbeat."""
    count: Counter[int] = Counter()
    answers: list[AppendEntriesReply] = []
    for now_ms in range(3_000, 6_000):
        core.tick(at(now_ms))
        for answer in answers:
            core.step(answer, at(now_ms))
        answers.clear()
        messages = [each for each in sent(outputs(core, now_ms)) if isinstance(each, AppendEntries)]
        check_state(core.state)
        for asked in messages:
            end = asked.entries[-1].index if asked.entries else asked.prev_index
            is_odd = asked.to == 2 and random.randrange(4) > 0
            hint = ODD[kind](random, core.state.log, asked.prev_index) if is_odd else (0, 0)
            match = random.randrange(core.state.log.last.index + 2) if is_odd else end
            reply = AppendEntriesReply(
                sender=asked.to,
                to=1,
                term=core.state.term,
                success=not is_odd or not random.randrange(8),
                match=match,
                prev_index=asked.prev_index,
                round=asked.round,
                hint_index=hint[0],
                hint_term=hint[1],
            )
            answers += [reply] * (1 + is_odd * random.randrange(2))
            count[now_ms // OPTIONS.heartbeat_ms] += asked.to == 2
    return count


@pytest.mark.parametrize("kind", ODD)
def test_no_answer_of_a_follower_ends_its_leader_or_makes_it_send_without_end(kind: str) -> None:
    """Entries of several records, hints inside of them, answers that come twice. A leader that died of a wrong answer
    would take every write with it.

    Guard: `may_end` in `_back_off` and `on_append_reply` of raft/consensus/replication.py.
    """
    for seed in range(2):
        random, core = Random(seed), a_leader()
        for _ in range(ENTRIES):
            core.propose(EntryKind.COMMANDS, random.choice((1, 3)), b"x" * random.choice((10, 2_000)), at(2_900))
        outputs(core, 2_900)
        acknowledge(core, 3)
        count = ended(core, random, kind)
        assert isinstance(core.state.role, Leader)
        assert max(count.values()) <= MESSAGES_MAX
