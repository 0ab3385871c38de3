"""Reads the options of a writing once: names, defaults, and the allowed values of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from raftlog.spark_export.errors import UsageError
from raftlog.spark_export.fetch.door import PATIENCE_S, parse_endpoints
from raftlog.spark_export.fetch.options import number_of, word_of

Operation = Literal["append", "put"]
OPERATIONS: Final[tuple[Operation, ...]] = ("append", "put")

NAMES: Final = (
    "endpoints",
    "operation",
    "recordsPerRequest",
    "sessionTtlSeconds",
    "timeoutSeconds",
    "writeId",
    "valueFormat",
    "keyColumn",
    "timeColumn",
)
SESSION_TTL_S: Final = 86_400
"""One day: a query that restarts within it finds its sessions. Later, it must read the log."""
RECORDS_PER_REQUEST: Final = 1_000

ValueFormat = Literal["json", "msgpack", "csv"]
FORMATS: Final[tuple[ValueFormat, ...]] = ("json", "msgpack", "csv")
"""Formats of a value that holds a user's own columns; the first one is the default."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of one writing."""

    endpoints: tuple[str, ...]
    operation: Operation = "append"
    records_per_request: int = RECORDS_PER_REQUEST
    ttl_s: int = SESSION_TTL_S
    patience_s: float = PATIENCE_S
    write_id: str | None = None
    value_format: ValueFormat | None = None  # of the value that holds a user's own columns; None: it is a column
    key_column: str | None = None
    time_column: str | None = None


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Raises UsageError for an option that is missing, unknown or has a value that means nothing."""
    known = {name.lower(): name for name in NAMES}
    # Spark's own, which it hands to every sink
    given = {
        name.lower(): value for name, value in options.items() if name.lower() not in ("path", "checkpointlocation")
    }
    for name in given:
        if name not in known:
            raise UsageError(f"unknown option {name!r} for writing. The options are {', '.join(NAMES)}.")
    if "endpoints" not in given:
        raise UsageError('option endpoints is missing: .option("endpoints", "http://127.0.0.1:7001,...")')
    write_id = given.get("writeid")
    if write_id is not None and streaming:
        raise UsageError("option writeId is for df.write: a streaming query is known by its checkpoint")
    if write_id is not None and not (0 < len(write_id) <= 200 and write_id.isprintable() and "/" not in write_id):
        raise UsageError("option writeId is 1 to 200 visible characters without a slash")
    return SinkOptions(
        parse_endpoints(given["endpoints"]),
        word_of("operation", given, OPERATIONS),
        number_of("recordsPerRequest", given, RECORDS_PER_REQUEST),
        number_of("sessionTtlSeconds", given, SESSION_TTL_S),
        number_of("timeoutSeconds", given, int(PATIENCE_S)),
        write_id,
        _value_format(given),
        given.get("keycolumn"),
        given.get("timecolumn"),
    )


def _value_format(given: Mapping[str, str]) -> ValueFormat | None:
    """The format of own columns: JSON, if only keyColumn or timeColumn is given."""
    form = word_of("valueFormat", given, FORMATS)
    return form if any(name in given for name in ("valueformat", "keycolumn", "timecolumn")) else None
