"""Reads the options of the data source once: names, defaults, and the allowed values of each."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, TypeVar

import msgspec

from raftlog.cluster.api.values import SHARD, Position
from raftlog.cluster.importer.formats.dialect import Dialect
from raftlog.spark_export.columns.records import RECORDS, Records
from raftlog.spark_export.columns.schema import INTERNAL_OPERATIONS, SHOWN, USER_OPERATIONS
from raftlog.spark_export.errors import UsageError
from raftlog.spark_export.fetch.door import PATIENCE_S, NodeRotation, parse_endpoints
from raftlog.spark_export.fetch.offsets import RECORDS_PER_PARTITION

STREAM_PATIENCE_S: Final = 120.0
"""A stream that gives up ends its query, a batch read only itself: so it waits longer."""
ENTRIES_PER_TRIGGER: Final = 1_000_000
"""A first batch of a second or two, instead of one that reads the whole history before anything shows."""
SAMPLING_RECORDS: Final = 1_000
"""Records that inferSchema looks at: as many as an import looks at."""
RESCUED: Final = "_rescued_data"  # as Databricks names it
TRIGGER_DELAY_S: Final = 900.0  # as long as Spark's Kafka connector waits

READING: Final = (
    "endpoints",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "keyPrefix",
    "operations",
    "valueFormat",
    "mode",
    "log",
    "timeoutSeconds",
    "changes",
    "localFolders",
    "records",
    "importSource",
    "inferSchema",
    "samplingRecords",
    "rescuedDataColumn",
    "columns",
    "delimiter",
    "quote",
    "escape",
)
BATCH: Final = ("endingOffsets", "endingTimestamp", "asOf")
STREAM: Final = ("maxEntriesPerTrigger", "maxBytesPerTrigger", "minEntriesPerTrigger", "maxTriggerDelay", "groupId")
NAMES: Final = READING + BATCH + STREAM

_SECRETS: Final = ("token", "tokenfile", "accesstoken", "authorization", "password")
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|h|d)")
_INSTANT: Final = "milliseconds since 1970, or a time as 2026-11-21T20:00:00Z"


@dataclass(frozen=True, slots=True)
class At:
    """The first entry of this time or a later one."""

    time_ms: int


@dataclass(frozen=True, slots=True)
class Ago:
    """The first entry that is not older than this."""

    ms: int


Offset = str | int | At | Ago | Position
"""A word; an index, or -N for the last N records; a time; or a position with its log id, as checkpoints have it."""
Strategy = Literal["error", "latest", "earliest"]
ValueFormat = Literal["raw", "json", "msgpack", "csv", "auto"]
FORMATS: Final[tuple[ValueFormat, ...]] = ("raw", "json", "msgpack", "csv", "auto")
Mode = Literal["PERMISSIVE", "FAILFAST"]
W = TypeVar("W", bound=str)

_decode_position: Final = msgspec.json.Decoder(Position).decode


@dataclass(frozen=True, slots=True)
class CsvForm:
    """How values of CSV are written. Without `columns`, the user's schema names them in order."""

    columns: tuple[str, ...] = ()
    delimiter: str = ","
    quote: str = '"'
    escape: str | None = None  # None: a quote in a quoted field is doubled

    @property
    def dialect(self) -> Dialect:
        """The same as that of an import."""
        return Dialect(self.delimiter, self.quote, self.escape, header=False)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one read. What the offsets mean is found out in `raftlog.spark_export.source.bounds`."""

    endpoints: tuple[str, ...]
    starting: Offset = "earliest"
    ending: Offset = "latest"
    strategy: Strategy = "error"
    min_partitions: int = 1
    max_records_per_partition: int = RECORDS_PER_PARTITION
    fail_on_data_loss: bool = True
    include_internal: bool = False
    key_prefix: bytes = b""
    operations: tuple[str, ...] = ()
    value_format: ValueFormat = "raw"
    mode: Mode = "PERMISSIVE"
    log_id: str | None = None
    patience_s: float = PATIENCE_S
    as_of: int | At | None = None
    changes: bool = False
    entries_max: int = ENTRIES_PER_TRIGGER
    bytes_max: int | None = None
    entries_min: int = 1
    delay_max_s: float = TRIGGER_DELAY_S
    group: str | None = None
    is_start_given: bool = False  # else a consumer group may say where to begin
    folders: tuple[str, ...] = ()  # data folders of nodes that may be on the machine of a task
    import_source: str | None = None  # the name of an imported file, or the session of an import
    infers: bool = False
    sampling: int = SAMPLING_RECORDS
    rescued: str = RESCUED
    csv: CsvForm = CsvForm()

    @property
    def nodes(self) -> NodeRotation:
        """The nodes, to be asked for one thing."""
        return NodeRotation(self.endpoints, self.patience_s)


def parse_options(options: Mapping[str, str], *, streaming: bool = False) -> SourceOptions:
    """Raises UsageError for an option that is missing, unknown, not for this kind of read, or means nothing."""
    given = _known(options)
    if "endpoints" not in given:
        raise UsageError('option endpoints is missing: .option("endpoints", "http://127.0.0.1:7001,...")')
    if "groupid" in given and not streaming:
        raise UsageError("option groupId is for spark.readStream: a batch read begins and ends where its options say")
    if "groupid" in given and not given["groupid"].strip():
        raise UsageError("option groupId is empty: it is the name of a consumer group")
    if streaming:
        for name in BATCH:
            if name.lower() in given:
                raise UsageError(
                    f"option {name} is for spark.read. A stream has no end; to read the present records and stop, use "
                    f"writeStream.trigger(availableNow=True)"
                )
    parsed = SourceOptions(
        endpoints=parse_endpoints(given["endpoints"]),
        starting=_start(given, ("earliest", "latest", "snapshot") if streaming else ("earliest",)),
        ending=_end(given),
        strategy=word_of("startingOffsetsByTimestampStrategy", given, ("error", "latest", "earliest")),
        min_partitions=number_of("minPartitions", given, 1),
        max_records_per_partition=number_of("maxRecordsPerPartition", given, RECORDS_PER_PARTITION),
        fail_on_data_loss=_flag("failOnDataLoss", given, True),
        include_internal=_records(given) == "all",
        key_prefix=given.get("keyprefix", "").encode(),
        operations=_operations(given),
        value_format=word_of("valueFormat", given, FORMATS, "auto" if "importsource" in given else "raw"),
        mode=word_of("mode", given, ("PERMISSIVE", "FAILFAST")),
        log_id=given.get("log"),
        patience_s=float(number_of("timeoutSeconds", given, int(STREAM_PATIENCE_S if streaming else PATIENCE_S))),
        as_of=_as_of(given),
        changes=_flag("changes", given, False),
        entries_max=number_of("maxEntriesPerTrigger", given, ENTRIES_PER_TRIGGER),
        bytes_max=number_of("maxBytesPerTrigger", given, 0) or None,
        entries_min=number_of("minEntriesPerTrigger", given, 1),
        delay_max_s=_duration_ms("maxTriggerDelay", given, int(TRIGGER_DELAY_S * 1000)) / 1000,
        group=given.get("groupid"),
        is_start_given="startingoffsets" in given or "startingtimestamp" in given,
        folders=_folders(given),
        import_source=given.get("importsource"),
        infers=_flag("inferSchema", given, False),
        sampling=number_of("samplingRecords", given, SAMPLING_RECORDS),
        rescued=given.get("rescueddatacolumn", RESCUED),
        csv=_csv(given),
    )
    _check_together(parsed, given)
    return parsed


def _known(options: Mapping[str, str]) -> dict[str, str]:
    given = {name.lower(): value for name, value in options.items()}
    known = {name.lower(): name for name in NAMES}
    for name in given:
        if name in _SECRETS:
            raise UsageError(
                f"option {name}: a token is no option, because plans, the UI and event logs show options. Set "
                "RAFTLOG_TOKEN_FILE, and spark.executorEnv.RAFTLOG_TOKEN_FILE for executors on other machines"
            )
        if name not in known:
            from difflib import get_close_matches  # compiles patterns: 2 ms in each process that plans

            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {known[near[0]]}?" if near else ""
            raise UsageError(f"unknown option {name!r}{hint or '.'} The options are {', '.join(NAMES)}.")
    return given


def _check_together(options: SourceOptions, given: Mapping[str, str]) -> None:
    """What each option allows by itself, but not beside another."""
    for one, other in (("startingOffsets", "startingTimestamp"), ("endingOffsets", "endingTimestamp")):
        if one.lower() in given and other.lower() in given:
            raise UsageError(f"both {one} and {other} are given: give one")
    internal = [name for name in options.operations if name in INTERNAL_OPERATIONS]
    if internal and not options.include_internal:
        raise UsageError(f"option operations names {internal[0]}, an internal one: set records=all too")
    if options.entries_min > options.entries_max:
        raise UsageError(
            f"minEntriesPerTrigger {options.entries_min} is above maxEntriesPerTrigger {options.entries_max}"
        )
    _check_values(options, given)
    if options.as_of is not None:
        others = (
            "startingOffsets",
            "startingTimestamp",
            "endingOffsets",
            "endingTimestamp",
            "operations",
            "changes",
            "records",
            "valueFormat",
            "importSource",
        )
        for name in others:
            if name.lower() in given:
                raise UsageError(f"option {name} says nothing beside asOf, which reads the state and not the log")
    if options.changes and options.value_format != "raw":
        raise UsageError("option valueFormat must be raw beside changes: images are bytes as they were written")
    if options.changes and options.starting == "snapshot":
        raise UsageError("startingOffsets=snapshot gives a state, and changes=true gives changes: use one of them")


def _check_values(options: SourceOptions, given: Mapping[str, str]) -> None:
    """The options of values, each beside the format that it needs."""
    form = f"valueFormat is {options.value_format!r}"
    if options.import_source is not None and options.value_format != "auto":
        raise UsageError(f"option importSource reads values as they were imported, but {form}: leave that out")
    if options.import_source is not None and not options.import_source.strip():
        raise UsageError("option importSource is empty; it must be the name of an imported file, or a session")
    for name in ("columns", "delimiter", "quote", "escape"):
        if name in given and options.value_format != "csv":
            raise UsageError(f"option {name} is for valueFormat=csv, but {form}")
    for name in ("inferSchema", "samplingRecords", "rescuedDataColumn"):
        if name.lower() in given and options.value_format == "raw" and given[name.lower()].strip().lower() != "false":
            raise UsageError(f"option {name} needs valueFormat json, msgpack, csv or auto, but {form}")
    if not options.rescued.strip() or options.rescued.lower() in map(str.lower, SHOWN.names):
        raise UsageError(f"option rescuedDataColumn is {options.rescued!r}; it must be a name that no column has")


def _offset(name: str, text: str, words: tuple[str, ...], lowest: int | None) -> Offset:
    text = text.strip()
    if text in words:
        return text
    if text.startswith("{"):
        return _position(name, text)
    if lowest is None and text.startswith("-") and (found := _DURATION.fullmatch(text[1:])):
        return Ago(int(found[1]) * _UNITS_MS[found[2]])
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number == 0 or (lowest is not None and number < lowest):
        relative = "" if lowest is not None else ", -N for the last N records, -10m for those of the last ten minutes"
        raise UsageError(
            f"option {name} is {text!r}; it may be {', '.join(words)}, an index from 1 on{relative}, or a position "
            f'{{"log": "…", "next": {{"0": N}}}}'
        )
    return number


def _position(name: str, text: str) -> Position:
    try:
        position = _decode_position(text)
    except msgspec.MsgspecError as error:
        raise UsageError(f"option {name} is no position: {error}") from error
    if list(position.next) != [SHARD] or position.next[SHARD] < 1:
        raise UsageError(f'option {name}: a position has one shard, "{SHARD}", and an index from 1 on: {text}')
    return position


def _start(given: Mapping[str, str], words: tuple[str, ...]) -> Offset:
    if "startingtimestamp" in given:
        return At(_instant("startingTimestamp", given["startingtimestamp"]))
    text = given.get("startingoffsets", "earliest")
    if text.strip() == "snapshot" and "snapshot" not in words:
        raise UsageError("startingOffsets=snapshot is for readStream; spark.read gets the state with asOf=<index>")
    if text.strip() == "latest" and "latest" not in words:
        raise UsageError("startingOffsets=latest is for readStream: in a batch there is nothing behind the end")
    return _offset("startingOffsets", text, words, None)


def _end(given: Mapping[str, str]) -> Offset:
    if "endingtimestamp" in given:
        return At(_instant("endingTimestamp", given["endingtimestamp"]))
    return _offset("endingOffsets", given.get("endingoffsets", "latest"), ("latest", "committed"), 1)


def _as_of(given: Mapping[str, str]) -> int | At | None:
    """An index is a whole number; what has the form of a time is one."""
    text = given.get("asof")
    if text is None:
        return None
    if text.strip().isascii() and text.strip().isdigit() and int(text) > 0:
        return int(text)
    return At(_instant("asOf", text, f"an index from 1 on, or {_INSTANT.partition(', or ')[2]}"))


def _instant(name: str, text: str, allowed: str = _INSTANT) -> int:
    text = text.strip()
    if name != "asOf" and text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"option {name} is {text!r}; it may be {allowed}") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def _operations(given: Mapping[str, str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in given.get("operations", "").split(",") if part.strip()))
    for name in names:
        if name not in USER_OPERATIONS and name not in INTERNAL_OPERATIONS:
            raise UsageError(f"option operations names {name!r}; there are {', '.join(USER_OPERATIONS)}")
    if "operations" in given and not names:
        raise UsageError(f"option operations names none; there are {', '.join(USER_OPERATIONS)}")
    return names


def _records(given: Mapping[str, str]) -> Records:
    """Which records are read. Raises UsageError for another word."""
    return word_of("records", given, RECORDS) if "records" in given else "user"


def _folders(given: Mapping[str, str]) -> tuple[str, ...]:
    folders = tuple(dict.fromkeys(part.strip() for part in given.get("localfolders", "").split(",") if part.strip()))
    if ("localfolders" in given and not folders) or not all(folder.startswith("/") for folder in folders):
        raise UsageError(
            f"option localFolders is {given['localfolders']!r}; it must name data folders of nodes by their absolute "
            f"paths, with commas: tasks have another current folder"
        )
    return folders


def _csv(given: Mapping[str, str]) -> CsvForm:
    columns = tuple(part.strip() for part in given.get("columns", "").split(",")) if "columns" in given else ()
    if "" in columns or len({each.lower() for each in columns}) < len(columns):
        raise UsageError(
            f"option columns is {given['columns']!r}; it must name each column of a row of CSV once, with commas "
            f"between the names"
        )
    marks = {name: given.get(name, default) for name, default in (("delimiter", ","), ("quote", '"'), ("escape", ""))}
    marks["delimiter"] = "\t" if marks["delimiter"] == r"\t" else marks["delimiter"]
    for name, mark in marks.items():
        allowed = len(mark) == 1 and mark not in "\r\n" and not (mark.isalnum() or mark == " ")
        if not allowed and not (name == "escape" and mark == ""):
            raise UsageError(f"option {name} is {given[name]!r}; it must be one character such as , ; | or \\t")
    if marks["delimiter"] == marks["quote"] or marks["escape"] in (marks["delimiter"], marks["quote"]):
        raise UsageError(
            f"options delimiter {marks['delimiter']!r}, quote {marks['quote']!r} and escape {marks['escape']!r} must "
            f"differ. A doubled quote needs no escape."
        )
    return CsvForm(columns, marks["delimiter"], marks["quote"], marks["escape"] or None)


def number_of(name: str, given: Mapping[str, str], default: int) -> int:
    """A whole number from 1 on. Raises UsageError."""
    if name.lower() not in given:
        return default
    text = given[name.lower()].strip()
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(f"option {name} is {text!r}; it must be a whole number from 1 on")
    return int(text)


def _duration_ms(name: str, given: Mapping[str, str], default: int) -> int:
    if name.lower() not in given:
        return default
    text = given[name.lower()].strip()
    found = _DURATION.fullmatch(text)
    if not found:
        raise UsageError(f"option {name} is {text!r}; it must be a time as 500ms, 30s, 15m or 1h")
    return int(found[1]) * _UNITS_MS[found[2]]


def word_of(name: str, given: Mapping[str, str], words: tuple[W, ...], default: W | None = None) -> W:
    """One of the words. The first one is the default if no other is given. Raises UsageError."""
    text = given.get(name.lower(), default or words[0]).strip()
    for word in words:
        if text.lower() == word.lower():
            return word
    raise UsageError(f"option {name} is {text!r}; it may be {', '.join(words)}")


def _flag(name: str, given: Mapping[str, str], default: bool) -> bool:
    text = given.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise UsageError(f"option {name} is {text!r}; it must be true or false")
    return text == "true"
