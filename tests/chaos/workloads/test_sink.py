"""The judge of a sink's store sees each difference between a sample and the log."""

import pytest

from raftlog.chaos.workloads.sink import StoreSample, compared

CHANGES = [(4, "s/a", "1"), (6, "s/b", "2"), (6, "s/a", "3"), (9, "s/b", None)]
SAMPLES: list[StoreSample] = [
    (1, {}),
    (5, {"s/a": "1"}),
    (7, {"s/a": "3", "s/b": "2"}),
    (5, {"s/a": "1"}),  # the store was read before and after
    (10, {"s/a": "3"}),
]


def test_samples_of_a_right_store_are_folds_of_the_log() -> None:
    """In any order; a position may be seen again."""
    assert compared(SAMPLES, CHANGES) == []


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ((5, {}), "at position 5 .*: s/a is None in the store and 1 in the log"),
        ((7, {"s/a": "3"}), "at position 7 .*: s/b is None in the store and 2 in the log"),
        ((6, {"s/a": "3", "s/b": "2"}), "at position 6 .*: s/a is 3 in the store and 1 in the log"),
        ((8, {"s/a": "1", "s/b": "2"}), "at position 8 .*: s/a is 1 in the store and 3 in the log"),
        ((10, {"s/a": "3", "s/c": "9"}), "at position 10 .*: s/c is 9 in the store and None in the log"),
    ],
)
def test_a_sample_that_is_no_fold_is_named(sample: StoreSample, said: str) -> None:
    """A lost row, half an index, rows ahead of their position, an old value, a row from nowhere."""
    with pytest.raises(AssertionError, match=said):
        assert not (problems := compared([*SAMPLES, sample], CHANGES)), problems[0]


def test_a_store_that_does_not_reach_the_end_is_named() -> None:
    """After the run the log has nothing that the store lacks."""
    said = ["the store of the sink ends at 7, and the log has a change at 9"]
    assert compared(SAMPLES[:3], CHANGES) == said
