"""Tests notices of a commit: held back while the next entries will carry it, sent at once to a waiting peer."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from raftlog.cluster.peers import commit_notices
from raftlog.cluster.peers.commit_notices import CommitNotices
from raftlog.raft.codec.entry import seal_entry
from raftlog.raft.messages import AppendEntries
from raftlog.raft.types import GENESIS, Entry, EntryKind
from tests.support import wait_until_async

HEARTBEAT = AppendEntries(sender=1, to=2, term=3, prev_index=5, prev_term=3, commit=5, round=1, entries=())
NEWS = replace(HEARTBEAT, prev_index=6, commit=6)


def entries() -> tuple[Entry, ...]:
    """Something to append."""
    return (seal_entry(GENESIS, term=3, kind=EntryKind.NOOP, count=1, time_ms=0, clock_ms=0, data=b""),)


def holding() -> tuple[CommitNotices, list[AppendEntries]]:
    """One that has sent a heartbeat, and holds the news after it; and what leaves it from then on."""
    sent: list[AppendEntries] = []
    notices = CommitNotices(sent.append)
    notices.holds(HEARTBEAT)
    assert notices.holds(NEWS)
    return notices, sent


async def test_news_wait_for_the_next_entries_and_go_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new commit alone is held; entries that say as much take its place, and nothing is left to send."""
    monkeypatch.setattr(commit_notices, "HOLD_S", 60.0)
    sent: list[AppendEntries] = []
    notices = CommitNotices(sent.append)
    assert not notices.holds(HEARTBEAT), "the first of a term names the leader to the follower"
    assert notices.holds(NEWS)
    assert not notices.holds(replace(NEWS, entries=entries()))
    assert not notices._held
    assert not sent
    notices.stop()


async def test_news_leave_by_themselves_after_a_moment() -> None:
    """Where no entry comes they are sent, once. Guard: the timer."""
    notices, sent = holding()
    await wait_until_async(lambda: sent)
    assert sent == [NEWS]
    assert not notices.holds(NEWS), "a sent commit is not held"


async def test_an_older_commit_does_not_replace_a_held_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat from an older match goes at once, and the newer commit is still to be sent."""
    monkeypatch.setattr(commit_notices, "HOLD_S", 0.01)
    notices, sent = holding()
    assert not notices.holds(HEARTBEAT)
    await wait_until_async(lambda: sent)
    assert sent == [NEWS]


@pytest.mark.parametrize("other", [replace(NEWS, round=2), replace(NEWS, term=4)])
async def test_a_read_round_and_a_new_term_are_never_held(other: AppendEntries) -> None:
    """Somebody waits for their answers."""
    notices = CommitNotices(lambda _: None)
    notices.holds(HEARTBEAT)
    assert not notices.holds(other)


async def test_a_peer_with_waiting_clients_gets_the_commit_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clients wait until it has applied their requests: a held notice goes, and nothing is held for a while."""
    monkeypatch.setattr(commit_notices, "HOLD_S", 60.0)
    notices, sent = holding()
    notices.asked(2)
    assert sent == [NEWS]
    assert not notices.holds(replace(NEWS, commit=7, prev_index=7))
    monkeypatch.setattr(commit_notices, "ASKED_S", 0.0)
    assert notices.holds(replace(NEWS, commit=8, prev_index=8)), "it has not asked for a while"
    notices.stop()
    await asyncio.sleep(0)
