"""The options of the data source and the ranges of indexes that they mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from typing import Final

from spark_export.door import PATIENCE_S, parse_endpoints
from spark_export.errors import UsageError

RECORDS_PER_PARTITION: Final = 500_000
"""A task of about 70 MB: large enough for its fixed cost, small enough to be repeated."""

NAMES: Final = (
    "endpoints", "startingOffsets", "endingOffsets", "minPartitions", "maxRecordsPerPartition", "failOnDataLoss",
    "includeInternal", "log", "timeoutSeconds",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options, read once. Offsets are words or numbers as given; `resolve` makes indexes of them."""

    endpoints: tuple[str, ...]
    starting: str | int = "earliest"
    ending: str | int = "latest"
    min_partitions: int = 1
    max_records_per_partition: int = RECORDS_PER_PARTITION
    fail_on_data_loss: bool = True
    include_internal: bool = False
    log_id: str | None = None
    patience_s: float = PATIENCE_S


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Raises UsageError for an option that is missing, unknown or has a value that means nothing."""
    given = {name.lower(): value for name, value in options.items()}
    known = {name.lower(): name for name in NAMES}
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {known[near[0]]}?" if near else ""
            raise UsageError(f"unknown option {name!r}{hint or '.'} The options are {', '.join(NAMES)}.")
    if "endpoints" not in given:
        raise UsageError('option endpoints is missing: .option("endpoints", "http://127.0.0.1:7001,...")')
    return SourceOptions(
        parse_endpoints(given["endpoints"]),
        _offset("startingOffsets", given, "earliest", ("earliest",), lowest=None),
        _offset("endingOffsets", given, "latest", ("latest", "committed"), lowest=1),
        _number("minPartitions", given, 1),
        _number("maxRecordsPerPartition", given, RECORDS_PER_PARTITION),
        _flag("failOnDataLoss", given, True),
        _flag("includeInternal", given, False),
        given.get("log"),
        float(_number("timeoutSeconds", given, int(PATIENCE_S))),
    )


def _offset(name: str, given: Mapping[str, str], default: str, words: Sequence[str], lowest: int | None) -> str | int:
    text = given.get(name.lower(), default).strip()
    if text in words:
        return text
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number == 0 or (lowest is not None and number < lowest):
        relative = "" if lowest is not None else ", or -N for the last N records"
        raise UsageError(f"option {name} is {text!r}; it may be {', '.join(words)}, an index from 1 on{relative}")
    return number


def _number(name: str, given: Mapping[str, str], default: int) -> int:
    text = given.get(name.lower(), str(default)).strip()
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(f"option {name} is {text!r}; it must be a whole number from 1 on")
    return int(text)


def _flag(name: str, given: Mapping[str, str], default: bool) -> bool:
    text = given.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise UsageError(f"option {name} is {text!r}; it must be true or false")
    return text == "true"


def resolve(starting: str | int, ending: str | int, *, oldest: int, end: int) -> tuple[int, int]:
    """The range [start, stop) that the offsets mean in a log that keeps [oldest, end). `start` may lie below `oldest`:
    whether that is an error is for the caller. Raises UsageError where they lie beyond the end."""
    stop = end if isinstance(ending, str) else ending
    if stop > end:
        raise UsageError(f"endingOffsets is {stop}, but the log ends before index {end} (endingOffsets is exclusive)")
    if isinstance(starting, str):
        start = oldest
    elif starting < 0:
        start = max(stop + starting, oldest)
    else:
        start = starting
    if start > end:
        raise UsageError(f"startingOffsets is {start}, but the log ends before index {end}")
    if start > stop:
        raise UsageError(f"startingOffsets {start} lies beyond endingOffsets {stop}")
    return start, stop


def split(start: int, stop: int, *, at_least: int, records_max: int) -> list[tuple[int, int]]:
    """[start, stop) as ranges of almost equal size that follow one another: `at_least` so many (where there are as many
    records), none with more than `records_max`."""
    count = stop - start
    if count <= 0:
        return []
    pieces = min(max(at_least, -(-count // records_max)), count)
    cuts = [start + count * piece // pieces for piece in range(pieces + 1)]
    return list(pairwise(cuts))
