"""One follower as its leader sees it."""

from raft.options import Options
from raft.progress import PACE_LOOK_MS, PACE_LOOKS, Mode, Progress
from raft.ready import Fetch


def test_a_probe_ends_when_equality_is_proved_where_it_asked() -> None:
    """An answer below the question (to a heartbeat from an older match) leaves it open."""
    progress = Progress(sent=10, contact_ms=0)
    assert not progress.note_match(0)
    assert progress.mode is Mode.PROBE
    assert progress.note_match(10)
    assert (progress.mode, progress.match, progress.sent) == (Mode.REPLICATE, 10, 10)


def test_a_probe_at_a_place_that_may_not_be_an_end_does_not_become_a_stream() -> None:
    """Streaming from inside an entry would never match."""
    progress = Progress(sent=0, contact_ms=0)
    progress.probe(5, is_exact=False)
    progress.note_match(5)
    assert progress.mode is Mode.PROBE


def test_answers_free_the_window_up_to_what_they_prove() -> None:
    """Messages and bytes in flight are counted exactly; one answer may cover several."""
    options = Options(inflight_messages_max=3, inflight_bytes_max=1_000)
    progress = Progress(sent=0, contact_ms=0)
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


def test_pitfall_23_probing_again_keeps_what_is_proved_and_forgets_what_was_in_flight() -> None:
    """Match never falls, sent never falls below it, the window is empty, an outstanding fetch is void.

    Guard: `probe` in raft/progress.py takes the larger of both.
    """
    progress = Progress(sent=0, contact_ms=0)
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


def test_a_follower_that_needs_a_snapshot_waits() -> None:
    """It is asked again only after a heartbeat; once it matches, it is streamed to."""
    progress = Progress(sent=3, contact_ms=0)
    progress.need_snapshot(7)
    assert (progress.mode, progress.sent, progress.is_waiting) == (Mode.SNAPSHOT, 7, True)
    progress.note_match(7)
    assert progress.mode is Mode.REPLICATE


def test_who_gains_too_little_gets_more_at_a_time() -> None:
    """Behind by more and more it gets the window in steps, at last all of it; gaining enough it gives them back; and
    nobody who is not behind is remembered as slow."""
    options, now_ms = Options(inflight_messages_max=4), 0
    progress = Progress(sent=0, contact_ms=0)
    progress.note_match(0)
    widths: list[int] = []
    for lag in (600, 600, 610, 610, 611, 600, 590, 580, 570):
        progress.look_at_pace(lag, now_ms, options)
        widths.append(progress.behind_messages_max)
        now_ms += PACE_LOOK_MS
    assert widths == [1, 2, 4, 4, 4, 2, 1, 1, 1]
    progress.look_at_pace(570, now_ms, options)
    assert progress.behind_messages_max == 2
    progress.look_at_pace(0, now_ms, options)
    progress.look_at_pace(10_000, now_ms, options)
    assert progress.behind_messages_max == 1
    progress.look_at_pace(20_000, now_ms + PACE_LOOK_MS - 1, options)
    assert progress.behind_messages_max == 1, "too soon to tell"
    progress.look_at_pace(10_000 - 10_000 // PACE_LOOKS, now_ms + PACE_LOOK_MS, options)
    assert progress.behind_messages_max == 1, "in a minute it will be there"


def test_who_is_away_is_not_slow() -> None:
    """However long it was gone and however much it missed, it begins with one message, and so after each break."""
    options = Options()
    progress = Progress(sent=0, contact_ms=0)
    for look in range(5):
        progress.look_at_pace(1_000 * (1 + look), PACE_LOOK_MS * look, options)
    progress.note_match(0)
    assert progress.behind_messages_max == 1
    for look in range(5, 8):
        progress.look_at_pace(1_000 * (1 + look), PACE_LOOK_MS * look, options)
    assert progress.behind_messages_max == 4
    progress.probe(0)
    progress.look_at_pace(9_000, PACE_LOOK_MS * 8, options)
    progress.note_match(0)
    progress.look_at_pace(9_500, PACE_LOOK_MS * 9, options)
    assert progress.behind_messages_max == 1
