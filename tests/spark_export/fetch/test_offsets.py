"""Options become ranges, and what means nothing is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from raftlog.cluster.api.values import Position
from raftlog.spark_export.errors import DataLossError, UsageError
from raftlog.spark_export.fetch.offsets import StreamOffset, parse_offset, resolve, split
from raftlog.spark_export.fetch.options import NAMES, Ago, At, parse_options


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
        ({"endpoints": "h:1", "startingOffsets": "0"}, "index from 1 on, -N for the last N records, -10m"),
        ({"endpoints": "h:1", "endingOffsets": "-3"}, "endingOffsets is '-3'"),
        ({"endpoints": "h:1", "minPartitions": "many"}, "minPartitions is 'many'"),
        ({"endpoints": "h:1", "failOnDataLoss": "perhaps"}, "true or false"),
        ({"endpoints": "nowhere"}, "nowhere"),
        ({"endpoints": "h:1", "groupId": "g"}, "groupId is for spark.readStream"),
        ({"endpoints": "h:1", "startingOffsets": "latest"}, "latest is for readStream"),
        ({"endpoints": "h:1", "startingOffsets": "snapshot"}, "snapshot is for readStream.*asOf"),
        ({"endpoints": "h:1", "startingOffsets": "-3y"}, "startingOffsets is '-3y'"),
        ({"endpoints": "h:1", "startingOffsets": '{"log": "l"}'}, "no position: .*next"),
        ({"endpoints": "h:1", "startingOffsets": '{"log": "l", "next": {"1": 5}}'}, "one shard"),
        ({"endpoints": "h:1", "startingTimestamp": "yesterday"}, "startingTimestamp is 'yesterday'"),
        ({"endpoints": "h:1", "startingTimestamp": "5", "startingOffsets": "5"}, "both startingOffsets and starting"),
        ({"endpoints": "h:1", "startingOffsetsByTimestampStrategy": "guess"}, "may be error, latest, earliest"),
        ({"endpoints": "h:1", "maxTriggerDelay": "15"}, "maxTriggerDelay is '15'.*15m"),
        ({"endpoints": "h:1", "operations": "putt"}, "operations names 'putt'; there are append, put"),
        ({"endpoints": "h:1", "operations": "void"}, "an internal one: set records=all"),
        ({"endpoints": "h:1", "records": "mine"}, "records is 'mine'; it may be user, all"),
        ({"endpoints": "h:1", "asOf": "soon"}, "asOf is 'soon'"),
        ({"endpoints": "h:1", "asOf": "5", "changes": "true"}, "changes says nothing beside asOf"),
        ({"endpoints": "h:1", "minEntriesPerTrigger": "9", "maxEntriesPerTrigger": "5"}, "9 is above"),
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
    assert options == parse_options(
        {"endpoints": "h:1,g:2", "startingOffsets": " -5 ", "endingOffsets": "committed", "minPartitions": "3"}
    )
    assert options.fail_on_data_loss
    assert not options.include_internal


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"startingOffsets": "-10m"}, {"starting": Ago(600_000)}),
        ({"startingOffsets": "-36h"}, {"starting": Ago(36 * 3_600_000)}),
        ({"startingOffsets": '{"log": "l", "next": {"0": 7}}'}, {"starting": Position("l", {"0": 7})}),
        ({"startingTimestamp": "1700000000123"}, {"starting": At(1_700_000_000_123)}),
        ({"endingTimestamp": "2023-11-14T22:13:20.5Z"}, {"ending": At(1_700_000_000_500)}),
        ({"endingTimestamp": "2023-11-14 22:13:20"}, {"ending": At(1_700_000_000_000)}),
        ({"startingOffsetsByTimestampStrategy": "Latest"}, {"strategy": "latest"}),
        ({"asOf": "12"}, {"as_of": 12}),
        ({"asOf": "2023-11-14"}, {"as_of": At(1_699_920_000_000)}),
        ({"operations": "put, delete"}, {"operations": ("put", "delete")}),
        ({}, {"include_internal": False}),
        ({"records": "ALL"}, {"include_internal": True}),
        ({"keyPrefix": "ü"}, {"key_prefix": "ü".encode()}),
        ({"maxTriggerDelay": "500ms", "minEntriesPerTrigger": "9"}, {"delay_max_s": 0.5, "entries_min": 9}),
    ],
)
def test_options_have_their_documented_meaning(given: dict[str, str], expected: dict[str, Any]) -> None:
    """Times with and without a zone (then UTC), durations, positions as a checkpoint or a manifest holds them."""
    options = parse_options({"endpoints": "h:1", **given})
    assert {name: getattr(options, name) for name in expected} == expected


def test_some_options_are_for_streams_and_some_are_not() -> None:
    """A stream has no end, may begin at the end, and waits longer for a cluster that is away."""
    for name in ("endingOffsets", "endingTimestamp", "asOf"):
        with pytest.raises(UsageError, match=rf"{name} is for spark.read.*availableNow"):
            parse_options({"endpoints": "h:1", name: "7"}, streaming=True)
    options = parse_options({"endpoints": "h:1", "startingOffsets": "latest"}, streaming=True)
    assert options.starting == "latest"
    assert options.patience_s > parse_options({"endpoints": "h:1"}).patience_s


def test_positions_are_stable_text() -> None:
    """Spark compares offsets as text: the same position is the same text for ever. Text that is no position is
    refused.
    """
    offset = StreamOffset("l", 7)
    assert json.dumps(offset.as_json()) == '{"log": "l", "next": {"0": 7}}'
    begin = StreamOffset("l", 7, 3)
    assert json.dumps(begin.as_json()) == '{"log": "l", "next": {"0": 7}, "snapshot": {"revision": 3}}'
    for each in (offset, begin):
        assert parse_offset(json.loads(json.dumps(each.as_json()))) == each
    for wrong in ({}, {"log": "l"}, {"log": "l", "next": 7}, {"log": "l", "next": {"0": "x"}}):
        with pytest.raises(DataLossError, match="no position of this source"):
            parse_offset(wrong)
    with pytest.raises(DataLossError, match="names shards"):
        parse_offset({"log": "l", "next": {"0": 7, "1": 8}})


def test_every_option_is_in_the_docs() -> None:
    """docs/spark.md has a line for each, and for none that is not there."""
    text = (Path(__file__).parents[3] / "docs" / "spark.md").read_text(encoding="utf-8")
    section = text.partition("## Reading")[2].partition("### As a stream")[0]
    listed = {line.split("`")[1] for line in section.splitlines() if line.startswith("| `")}
    assert listed == set(NAMES)
