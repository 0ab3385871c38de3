"""The column-wise hashes of log rows are those of the state machine, row for row, whatever is null."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from xxhash import xxh64_intdigest

from raftlog.cluster.api.status import SetDigestHex
from raftlog.cluster.records.rows import decode_rows
from raftlog.spark_export.columns.hashes import row_hashes, set_digest
from raftlog.spark_export.columns.schema import ARROW
from raftlog.statemachine import digest
from raftlog.statemachine.effects import decode_effects
from tests.spark_export import logs

LOGS = (logs.real(24, batch=False), *(logs.mixed(seed, 80, records_max=3) for seed in range(3)))
ROWS = [row for log in LOGS for row in logs.naive_rows(log.entries, log.effects)]
TOLD = [
    found
    for log in LOGS
    for entry, effects in zip(log.entries, log.effects, strict=True)
    for found in digest.log_row_hashes(decode_rows(entry, decode_effects(effects), 1))
]


def batch_of(rows: list[logs.Row]) -> pa.RecordBatch:
    """The rows as columns."""
    return pa.RecordBatch.from_pylist(rows, schema=ARROW)


@pytest.mark.parametrize("first", [0, 1, 100])
def test_hashes_of_columns_are_those_of_rows(first: int) -> None:
    """Every kind of record, from any row on: slices of a batch do not begin at the begin of its buffers."""
    hashes = row_hashes(batch_of(ROWS).slice(first))
    assert hashes.tolist() == TOLD[first:]
    assert set_digest(hashes) == SetDigestHex(*digest.set_digest(TOLD[first:]).as_hex())


def test_one_row_at_a_time_has_the_same_hashes() -> None:
    """Columns that are null as a whole, or in no row, have ways of their own."""
    assert [int(row_hashes(batch_of([row]))[0]) for row in ROWS] == TOLD


def test_a_set_of_no_rows_has_the_empty_digest() -> None:
    """An empty batch has no hashes."""
    assert set_digest(row_hashes(batch_of([]))) == SetDigestHex(*digest.EMPTY.as_hex())


@pytest.mark.parametrize("length", range(40))
def test_words_of_any_length_are_hashed_as_xxh64_does(length: int) -> None:
    """Below 32 bytes in numpy, above by the library; an altered file may hold any word."""
    chance = random.Random(length)
    text = "".join(chance.choices("abcdefgh", k=length))
    rows: list[dict[str, Any]] = [{"index": 7, "term": 3, "kind": text}] * 3
    found = row_hashes(batch_of(rows))
    expected = xxh64_intdigest(digest.pack_long(3), xxh64_intdigest(digest.pack_long(7), digest.SEED))
    expected = xxh64_intdigest(digest.pack_long(0), xxh64_intdigest(text.encode(), expected))
    assert found.tolist() == [expected] * 3


def test_times_before_1970_are_rounded_down() -> None:
    """As Spark's unix_millis and the codecs do."""
    rows = [{"index": 1, "time": np.datetime64(-1500, "us").item()}]
    expected = xxh64_intdigest(digest.pack_long(-2), xxh64_intdigest(digest.pack_long(1), digest.SEED))
    assert row_hashes(batch_of(rows)).tolist() == [xxh64_intdigest(digest.pack_long(0), expected)]
