"""One follower as its leader sees it."""

import pytest

from raftlog.raft.consensus.progress import PACE_LOOK_MS, PACE_LOOKS, FollowerProgress, Mode
from raftlog.raft.options import Options
from raftlog.raft.ready import Fetch


def test_answers_free_the_window_up_to_their_proved_end() -> None:
    """Messages and bytes in flight are counted exactly; one answer may cover several."""
    options = Options(inflight_messages_max=3, inflight_bytes_max=1_000)
    progress = FollowerProgress(sent=0, contact_ms=0)
    progress.note_match(0)
    for end, size in ((5, 300), (9, 300), (12, 300)):
        assert progress.has_room(options)
        progress.note_sent(end, size)
    assert not progress.has_room(options)
    progress.note_match(9)
    assert (list(progress.inflight), progress.inflight_bytes) == ([(12, 300)], 300)
    assert progress.has_room(options)
    progress.note_sent(13, 700)
    assert not progress.has_room(options)  # bytes


def test_pitfall_23_probing_again_keeps_the_proved_end_and_empties_the_window() -> None:
    """Match never falls, sent never falls below it, the window is empty, an outstanding fetch is void.

    Guard: `probe` in raft/consensus/progress.py takes the larger of both.
    """
    progress = FollowerProgress(sent=0, contact_ms=0)
    progress.note_match(0)
    progress.note_sent(8, 100)
    progress.note_match(8)
    progress.note_sent(20, 100)
    progress.fetch = Fetch(2, 20, 30, 1)
    progress.commit_sent = 8
    progress.probe(3)
    assert (progress.match, progress.sent, progress.mode) == (8, 8, Mode.PROBE)
    assert (len(progress.inflight), progress.inflight_bytes, progress.commit_sent) == (0, 0, 0)
    assert progress.fetch is None


def test_a_follower_that_gains_too_little_gets_more_at_a_time() -> None:
    """Behind by more and more it gets the window in steps, at last all of it, and keeps it until it has caught up. A
    follower that has caught up begins again with one message."""
    options, now_ms = Options(inflight_messages_max=4), 0
    progress = FollowerProgress(sent=0, contact_ms=0)
    progress.note_match(0)
    widths: list[int] = []
    for lag in (600, 600, 610, 610, 611, 600, 590, 580, 570):
        progress.look_at_pace(lag, now_ms, options)
        widths.append(progress.pace.messages_max)
        now_ms += PACE_LOOK_MS
    assert widths == [1, 2, 4, 4, 4, 4, 4, 4, 4]
    progress.look_at_pace(0, now_ms, options)
    progress.look_at_pace(10_000, now_ms, options)
    assert progress.pace.messages_max == 1
    progress.look_at_pace(20_000, now_ms + PACE_LOOK_MS - 1, options)
    assert progress.pace.messages_max == 1, "too soon to decide"
    progress.look_at_pace(10_000 - 10_000 // PACE_LOOKS, now_ms + PACE_LOOK_MS, options)
    assert progress.pace.messages_max == 1, "in a minute it will be there"


def test_an_absent_follower_is_not_slow() -> None:
    """However long it was gone and however much it missed, it begins with one message, and so after each break."""
    options = Options()
    progress = FollowerProgress(sent=0, contact_ms=0)
    for look in range(5):
        progress.look_at_pace(1_000 * (1 + look), PACE_LOOK_MS * look, options)
    progress.note_match(0)
    assert progress.pace.messages_max == 1
    for look in range(5, 8):
        progress.look_at_pace(1_000 * (1 + look), PACE_LOOK_MS * look, options)
    assert progress.pace.messages_max == 4
    progress.probe(0)
    progress.look_at_pace(9_000, PACE_LOOK_MS * 8, options)
    progress.note_match(0)
    progress.look_at_pace(9_500, PACE_LOOK_MS * 9, options)
    assert progress.pace.messages_max == 1


@pytest.mark.parametrize("line", [(50, 8), (100, 2), (200, 2)])
def test_a_follower_behind_a_long_line_catches_up_while_others_write(line: tuple[int, int]) -> None:
    """It lacks 1 GiB and `written` MiB/s come. With one message of 256 KiB a round trip, or with fewer messages after
    each gain, it would stay behind for ever. It is back within ten minutes.
    """
    round_trip_ms, written = line
    options = Options()
    progress = FollowerProgress(sent=0, contact_ms=0, mode=Mode.REPLICATE)
    lag, now_ms = 1 << 30, 0
    while lag > 0:
        assert now_ms < 600_000, f"still {lag} bytes behind"
        progress.look_at_pace(max(1, lag >> 10), now_ms, options)  # records of 1 KiB
        lag += (written << 20) * round_trip_ms // 1_000 - progress.pace.messages_max * options.catch_up_bytes_max
        now_ms += round_trip_ms
    assert progress.pace.messages_max < options.inflight_messages_max
