"""Options become ranges, and what means nothing is refused by name."""

import pytest

from spark_export.errors import UsageError
from spark_export.offsets import parse_options, resolve, split


@pytest.mark.parametrize(
    ("starting", "ending", "expected"),
    [
        ("earliest", "latest", (5, 101)),
        ("earliest", 101, (5, 101)),
        (5, "committed", (5, 101)),
        (3, "latest", (3, 101)),  # below the oldest: the caller says what then
        (-10, "latest", (91, 101)),
        (-10, 50, (40, 50)),
        (-1000, "latest", (5, 101)),
        (101, "latest", (101, 101)),
    ],
)
def test_offsets_mean_a_range(starting: str | int, ending: str | int, expected: tuple[int, int]) -> None:
    """In a log that keeps indexes 5 to 100."""
    assert resolve(starting, ending, oldest=5, end=101) == expected


@pytest.mark.parametrize(("starting", "ending"), [(102, "latest"), ("earliest", 102), (50, 40)])
def test_offsets_beyond_the_end_are_refused(starting: str | int, ending: str | int) -> None:
    """An index that the log has not reached is no empty range."""
    with pytest.raises(UsageError):
        resolve(starting, ending, oldest=5, end=101)


@pytest.mark.parametrize(
    ("count", "at_least", "records_max", "pieces"), [(10, 3, 100, 3), (10, 1, 4, 3), (2, 5, 100, 2), (0, 4, 9, 0)]
)
def test_split_covers_the_range(count: int, at_least: int, records_max: int, pieces: int) -> None:
    """The pieces follow one another without gap or overlap, none is empty or too large."""
    ranges = split(7, 7 + count, at_least=at_least, records_max=records_max)
    assert len(ranges) == pieces
    assert [index for start, stop in ranges for index in range(start, stop)] == list(range(7, 7 + count))
    assert all(0 < stop - start <= records_max for start, stop in ranges)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "endpoints is missing"),
        ({"endpoints": "h:1", "startingOffset": "1"}, "unknown option 'startingoffset'; did you mean startingOffsets"),
        ({"endpoints": "h:1", "startingOffsets": "soon"}, "startingOffsets is 'soon'"),
        ({"endpoints": "h:1", "startingOffsets": "0"}, "index from 1 on, or -N"),
        ({"endpoints": "h:1", "endingOffsets": "-3"}, "endingOffsets is '-3'"),
        ({"endpoints": "h:1", "minPartitions": "many"}, "minPartitions is 'many'"),
        ({"endpoints": "h:1", "failOnDataLoss": "perhaps"}, "true or false"),
        ({"endpoints": "nowhere"}, "nowhere"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, str], match: str) -> None:
    """Each with its name, its value, and what it may be."""
    with pytest.raises(UsageError, match=match):
        parse_options(options)


def test_options_are_read() -> None:
    """Names in any case, as Spark passes them on."""
    options = parse_options(
        {"ENDPOINTS": "h:1,http://g:2", "startingoffsets": "-5", "endingoffsets": "committed", "minpartitions": "3"}
    )
    assert options.endpoints == ("http://h:1", "http://g:2")
    assert (options.starting, options.ending, options.min_partitions) == (-5, "committed", 3)
    assert options.fail_on_data_loss
    assert not options.include_internal
