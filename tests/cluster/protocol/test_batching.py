"""Tests when a batch closes: it waits for answered clients while they keep coming, and for no others."""

from __future__ import annotations

from raftlog.cluster.protocol.batching import AGAIN, GAP_S, GO, WINDOW_S, BatchWindow


def gathering(count: int, waiting: int) -> BatchWindow:
    """Of which so many were answered at 0.0 while others waited, and which was looked at once since."""
    gather = BatchWindow()
    gather.answered(count, waiting)
    assert gather.look(waiting, 0.0) is AGAIN
    return gather


def test_a_batch_waits_only_for_answered_clients() -> None:
    """The first request, and one after a long silence, goes at once. Guard: `_wanted` 0, and `_until`."""
    assert BatchWindow().look(1, 7.0) is GO
    assert gathering(64, 0).look(1, WINDOW_S) is GO


def test_a_single_client_is_back_alone_and_goes_at_once() -> None:
    """Whose requests come one after the other never waits. Guard: the comparison with `_wanted`."""
    gather = BatchWindow()
    gather.answered(1, 0)
    assert gather.look(1, 0.0) is GO


def test_a_batch_closes_when_all_answered_clients_are_back() -> None:
    """Answered clients and clients that waited meanwhile go together, as soon as the last one is there."""
    gather = gathering(3, 2)
    assert gather.look(3, 0.5 * GAP_S) is AGAIN
    assert gather.look(4, 1.0 * GAP_S) is AGAIN
    assert gather.look(5, 1.5 * GAP_S) is GO


def test_a_batch_closes_when_no_more_requests_come() -> None:
    """A gap ends it, counted from the one that came last; then a later one starts at once, too."""
    gather = gathering(64, 0)
    assert gather.look(1, 0.9 * GAP_S) is AGAIN, "the first one came"
    assert gather.look(1, 1.8 * GAP_S) is AGAIN, "not yet a gap since then"
    assert gather.look(1, 2.0 * GAP_S) is GO
    assert gather.look(1, 2.0 * GAP_S) is GO, "said once, it stays said"


def test_a_batch_does_not_wait_for_clients_without_end() -> None:
    """`WINDOW_S` bounds it, however quickly they follow each other."""
    gather = gathering(10_000, 0)
    now, waiting = 0.0, 0
    while now + GAP_S / 2 < WINDOW_S:
        now, waiting = now + GAP_S / 2, waiting + 1
        assert gather.look(waiting, now) is AGAIN
    assert gather.look(waiting + 1, WINDOW_S) is GO


def test_the_time_that_answers_take_to_be_written_is_no_gap() -> None:
    """The first look after them begins the count, whenever it comes. Guard: `_is_new`."""
    gather = BatchWindow()
    gather.answered(64, 0)
    assert gather.look(1, 100.0) is AGAIN
    assert gather.look(2, 100.0 + GAP_S) is AGAIN
