"""News of a commit: held back while the next entries will say it, told at once to who waits for it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from cluster import commit_news
from cluster.commit_news import CommitNews
from raft.codec import seal_entry
from raft.messages import AppendEntries
from raft.types import GENESIS, Entry, EntryKind
from tests.support import wait_until_async

HEARTBEAT = AppendEntries(sender=1, to=2, term=3, prev_index=5, prev_term=3, commit=5, round=1, entries=())
NEWS = replace(HEARTBEAT, prev_index=6, commit=6)


def entries() -> tuple[Entry, ...]:
    """Something to append."""
    return (seal_entry(GENESIS, term=3, kind=EntryKind.NOOP, count=1, time_ms=0, clock_ms=0, data=b""),)


def holding() -> tuple[CommitNews, list[AppendEntries]]:
    """One that has sent a heartbeat, and holds the news after it; and what leaves it from then on."""
    sent: list[AppendEntries] = []
    news = CommitNews(sent.append)
    news.holds(HEARTBEAT)
    assert news.holds(NEWS)
    return news, sent


async def test_news_wait_for_the_next_entries_and_go_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new commit alone is held; entries that say as much take its place, and nothing is left to send."""
    monkeypatch.setattr(commit_news, "HOLD_S", 60.0)
    sent: list[AppendEntries] = []
    news = CommitNews(sent.append)
    assert not news.holds(HEARTBEAT), "the first of a term tells the follower who leads"
    assert news.holds(NEWS)
    assert not news.holds(replace(NEWS, entries=entries()))
    assert not news._held
    assert not sent
    news.stop()


async def test_news_leave_by_themselves_after_a_moment() -> None:
    """Where no entry comes they are sent, once. Guard: the timer."""
    news, sent = holding()
    await wait_until_async(lambda: sent)
    assert sent == [NEWS]
    assert not news.holds(NEWS), "what was told is no news"


async def test_a_message_that_says_less_does_not_take_the_place_of_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat from an older match goes at once, and the newer commit is still to be told."""
    monkeypatch.setattr(commit_news, "HOLD_S", 0.01)
    news, sent = holding()
    assert not news.holds(HEARTBEAT)
    await wait_until_async(lambda: sent)
    assert sent == [NEWS]


@pytest.mark.parametrize("other", [replace(NEWS, round=2), replace(NEWS, term=4)])
async def test_a_read_round_and_a_new_term_are_never_held(other: AppendEntries) -> None:
    """Somebody waits for their answers."""
    news = CommitNews(lambda _: None)
    news.holds(HEARTBEAT)
    assert not news.holds(other)


async def test_a_peer_that_serves_clients_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clients wait until it has applied what they asked for: what is held goes, and nothing is held for a while."""
    monkeypatch.setattr(commit_news, "HOLD_S", 60.0)
    news, sent = holding()
    news.asked(2)
    assert sent == [NEWS]
    assert not news.holds(replace(NEWS, commit=7, prev_index=7))
    monkeypatch.setattr(commit_news, "ASKED_S", 0.0)
    assert news.holds(replace(NEWS, commit=8, prev_index=8)), "it has not asked for a while"
    news.stop()
    await asyncio.sleep(0)
