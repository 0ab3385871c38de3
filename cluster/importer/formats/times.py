"""Recognises the form of times in values, and reads values of that form as Unix milliseconds; pure.

`raftlog.cluster.importer.formats.deciding` decides the form from the first batch, and
`raftlog.cluster.importer.formats.lines` reads every value with it. A form is `iso`, a unit of Unix time (`s`, `ms`,
`us`, `ns`), or a format of `strptime`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

ISO: Final = "iso"
UNITS: Final = {"s": 1_000.0, "ms": 1.0, "us": 0.001, "ns": 0.000_001}
"""Units of Unix time, with the milliseconds of each."""

_RANGES: Final = (("s", 10**8, 10**10), ("ms", 10**11, 10**13), ("us", 10**14, 10**16), ("ns", 10**17, 10**19))
"""Numbers that look like Unix time of a unit: about 1973 to 2286. A smaller number can be anything."""

_CLOCKS: Final = (" %H:%M:%S.%f", " %H:%M:%S", " %H:%M", " %I:%M:%S %p", " %I:%M %p", "")
_DATES: Final = (
    "%Y/%m/%d",
    "%Y.%m.%d",
    "%d.%m.%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d-%m-%Y",
    "%m-%d-%Y",
    "%d/%m/%y",
    "%m/%d/%y",
    "%y/%m/%d",
    "%d %b %Y",
    "%d-%b-%Y",
    "%b %d, %Y",
    "%d %B %Y",
    "%B %d, %Y",
)
COMMON: Final = (
    *(day + clock for day in _DATES for clock in _CLOCKS),
    "%Y/%m/%dT%H:%M:%S.%f",
    "%Y-%m-%d %I:%M:%S %p",
    "%Y-%m-%d-%H.%M.%S.%f",
    "%Y%m%d%H%M%S",
    "%y%m%d%H%M%S",
    "%Y%m%d",
    "%d/%b/%Y:%H:%M:%S %z",
    "%a, %d %b %Y %H:%M:%S %z",
    "%d %b %Y %H:%M:%S %z",
    "%a %b %d %H:%M:%S %Y",
    "%a %b %d %Y %H:%M:%S GMT%z",
    "%Y-%m-%d %H:%M:%S %z",
    "%Y-%m-%d %H:%M:%S.%f %z",
    "%Y/%m/%d %H:%M:%S %z",
    "%Y-%m-%d %H:%M:%S,%f",
)
"""Forms that are recognised beside ISO 8601 and Unix time. Day or month first: the values must decide."""

NOMINATING: Final = 20
"""How many values, spread over the first batch, are tried with every form."""

SYSLOG_3164: Final = "%b %d %H:%M:%S"
"""The time of an old syslog line. It has no year."""

_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NAMES: Final = (
    "January|February|March|April|May|June|July|August|September|October|November|December"
    "|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
)
_PARTS: Final = {
    "Y": r"(?P<Y>\d{4})",
    "y": r"(?P<y>\d\d)",
    "m": r"(?P<m>\d{1,2})",
    "d": r" ?(?P<d>\d{1,2})",
    "e": r" ?(?P<d>\d{1,2})",
    "H": r"(?P<H>\d{1,2})",
    "I": r"(?P<I>\d{1,2})",
    "M": r"(?P<M>\d\d)",
    "S": r"(?P<S>\d\d)",
    "f": r"(?P<f>\d{1,9})",
    "b": rf"(?P<b>{_NAMES})",
    "B": rf"(?P<b>{_NAMES})",
    "p": r"(?P<p>[AaPp]\.?[Mm]\.?)",
    "a": r"[A-Za-z]{2,3}",
    "A": r"[A-Za-z]+",
    "z": r"(?P<z>Z|UTC|GMT|[+-]\d\d:?\d\d)",
    "Z": r"(?P<z>Z|UTC|GMT)",
    "%": "%",
}
_NUMERIC: Final = tuple("YymdeHIMSf")
_CLOCK_LAST: Final = re.compile(r"(?P<hour>.*%[Yy].*%H):%M:%S(?:(?P<mark>[.,])%f)?", re.DOTALL)
_TWO_DIGITS: Final = {f"{number:02d}": number for number in range(60)}
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?(?:[eE]\+?\d{1,2})?")
_BEGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH: Final = _BEGIN.toordinal()
_LATEST_MS: Final = 4 * 10**12
"""Any time of a form without a year is read, to find out whether it has that form."""

_DAY_MS: Final = 86_400_000
_MISLEADING: Final = re.compile(r"\d|(?<!%)[A-SU-Za-z]%[md]|%[md][A-SU-Za-z]|%[MSf] ?(?:[A-Z]{2,5}|[A-Z]\w+/\w.*)$")
"""A format with text that means something: digits, a quarter, an ending as in 1st, the name of a zone."""

_LATER_SECOND: Final = re.compile(r"(.*[T ]\d\d(:?)\d\d\2)60(?!\d)(.*)", re.DOTALL)
_LATER_DAY: Final = re.compile(r"(.*[T ])24((:?)00(?:\3(?:00(?:[.,]0+)?))?)(?![\d:.,])(.*)", re.DOTALL)
"""A leap second, and the end of a day, as ISO 8601 writes them and Python does not read them."""

Read = Callable[[Any], "int | None"]
Twice = Literal["earlier", "later", "stop"]
TWICE: Final = "occurs twice"
NEVER: Final = "never occurs"
LEAP: Final = "is a leap second"


class TimeRule(msgspec.Struct, frozen=True):
    """How to read the times of an import.

    `zone` is that of values without a zone: UTC, an offset, or a name like Europe/Berlin. `latest_ms` is the newest
    possible time of a form without a year, as Unix milliseconds. `twice`: which of the two a local time is that occurs
    twice, where clocks are put back. One that never occurs, where they are put forward, is no time.
    """

    form: str
    zone: str = "UTC"
    latest_ms: int | None = None
    twice: Twice = "earlier"


class BadTimeRule(ValueError):
    """A form or zone that does not exist. The message says how to write it."""


def zone_of(name: str) -> tzinfo:
    """The zone of that name, or of that offset as in +02:00. Raises BadTimeRule."""
    if name.upper() in ("UTC", "Z", "GMT"):
        return UTC
    try:
        return timezone(_offset(name)) if re.fullmatch(r"[+-]\d\d:?\d\d", name) else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadTimeRule(
            f"--time-zone {name!r}: no such zone; write a name like Europe/Berlin, or an offset like +02:00"
        ) from error


@lru_cache(maxsize=256)
def reader(rule: TimeRule) -> Read:
    """A function from a value to Unix milliseconds; None if the value is no time of this form. Raises BadTimeRule."""
    zone = zone_of(rule.zone)
    if rule.form in UNITS:
        return _unix_reader(rule.form)
    if rule.form == ISO:
        return lambda value: _read_iso(value, zone, rule.twice)
    return _pattern_reader(rule, zone)


def _unix_reader(unit: str) -> Read:
    """A number from the next unit's range on is no time of this one: it would be thousands of years away."""
    factor = UNITS[unit]
    most = min(2**63, next(10 * high for name, _, high in _RANGES if name == unit))

    def read(value: Any) -> int | None:
        if isinstance(value, str):
            if not _NUMBER.fullmatch(value):
                return None
            value = int(value) if value.isdecimal() else float(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < most:
            return None
        ms = value * int(factor) if factor >= 1 and isinstance(value, int) else round(value * factor)
        return ms if ms < 2**53 else None

    return read


def _read_iso(value: Any, zone: tzinfo, twice: Twice = "earlier") -> int | None:
    if not isinstance(value, str):
        return None
    text, more = value.strip(), timedelta(0)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        text = text.upper()  # RFC 3339 allows t and z
        if found := _LATER_SECOND.fullmatch(text):
            text, more = f"{found[1]}59{found[3]}", timedelta(seconds=1)
        elif found := _LATER_DAY.fullmatch(text):
            text, more = f"{found[1]}00{found[2]}{found[4]}", timedelta(days=1)
        try:
            when = datetime.fromisoformat(text) + more
        except (ValueError, OverflowError):
            return None
    return _as_ms(when) if when.tzinfo is not None else _local_ms(when, zone, twice)


def _as_ms(when: datetime) -> int | None:
    try:
        since = when - _BEGIN
    except OverflowError:
        return None
    ms = since.days * 86_400_000 + since.seconds * 1_000 + since.microseconds // 1_000
    return ms if ms >= 0 else None


def _local_ms(when: datetime, zone: tzinfo, twice: Twice) -> int | None:
    """The time of a clock in that zone. None if clocks were put forward over it."""
    when = when.replace(tzinfo=zone)
    if zone.utcoffset(None) is None:  # clocks are put forward and back
        first, second = when.utcoffset(), when.replace(fold=1).utcoffset()
        if first is not None and second is not None and first < second:
            return None
        if twice == "later":
            when = when.replace(fold=1)
    return _as_ms(when)


def doubt(rule: TimeRule, value: Any) -> str | None:
    """Why a value is no plain time of that form: a leap second, or a local time that occurs twice or never."""
    earlier, later = (reader(msgspec.structs.replace(rule, twice=each))(value) for each in ("earlier", "later"))
    if earlier is not None:
        if earlier != later:
            return TWICE
        return LEAP if _is_leap_second(rule.form, str(value).strip()) else None
    return NEVER if reader(msgspec.structs.replace(rule, zone="UTC"))(value) is not None else None


def _is_leap_second(form: str, text: str) -> bool:
    if form == ISO:
        return _LATER_SECOND.fullmatch(text.upper()) is not None
    found = None if form in UNITS else _compiled(form).fullmatch(text)
    return found is not None and found.groupdict().get("S") == "60"


def _pattern_reader(rule: TimeRule, zone: tzinfo) -> Read:
    pattern = _compiled(rule.form)
    match, has_zone = pattern.fullmatch, "z" in pattern.groupindex
    fixed = zone.utcoffset(None)

    def read_text(text: str) -> int | None:
        if (found := match(text)) is None:
            return None
        parts = found.groupdict()
        try:
            day = _day(parts.get("Y"), parts.get("y"), parts.get("m"), parts.get("b"), parts.get("d"))
            ms = _clock_ms(parts)
            offset = _offset(parts["z"]) if has_zone else fixed
            if day is None:
                return _without_year(parts, ms, zone, rule)
            if offset is None:
                return _local_ms(datetime.fromordinal(day) + timedelta(milliseconds=ms), zone, rule.twice)
        except (ValueError, OverflowError):
            return None
        ms += (day - _EPOCH) * 86_400_000 - offset // timedelta(milliseconds=1)
        return ms if ms >= 0 else None

    split = _CLOCK_LAST.fullmatch(rule.form)
    if split is not None and fixed is not None and rule.latest_ms is None:
        return _hour_reader(_pattern_reader(TimeRule(split["hour"], rule.zone), zone), read_text, split["mark"])
    return lambda value: read_text(value.strip() if type(value) is str else str(value) if type(value) is int else "")


def _hour_reader(hour_of: Read, read_text: Callable[[str], int | None], mark: str | None) -> Read:
    """A reader of forms that end in hour, minute and second. It reads each hour once, in a third of the time."""
    hour_of = lru_cache(maxsize=1 << 14)(hour_of)
    number_of = _TWO_DIGITS.get

    def read(value: Any) -> int | None:
        text = value.strip() if type(value) is str else ""
        try:
            hour, minutes, tail = text.split(":")
        except ValueError:
            return read_text(text)
        minute, second, fraction = number_of(minutes), number_of(tail[:2]), tail[3:]
        if (
            minute is None
            or second is None
            or hour[-1:].isspace()
            or (ms := hour_of(hour)) is None
            or hour[-2:] == "24"
        ):
            return read_text(text)
        if len(tail) > 2 and not (tail[2] == mark and tail.isascii() and fraction.isdecimal() and len(fraction) < 10):
            return read_text(text)
        ms += minute * 60_000 + second * 1_000
        return ms + int(f"{fraction}00"[:3]) if fraction else ms

    return read


@lru_cache(maxsize=256)
def _compiled(form: str) -> re.Pattern[str]:
    """The pattern of a format. A fraction of a second at the end may be missing. Raises BadTimeRule."""
    form = form.replace("%T", "%H:%M:%S").replace("%F", "%Y-%m-%d").replace("%R", "%H:%M")
    pattern, at = "", 0
    for found in re.finditer(r"%(.?)", form):
        pattern += re.escape(form[at : found.start()])
        if found[1] not in _PARTS:
            raise BadTimeRule(
                f"--time-format {form}: %{found[1]} is not known; write {', '.join(f'%{each}' for each in _PARTS)}, "
                f"or one of {ISO}, {', '.join(UNITS)}"
            )
        part = _PARTS[found[1]]
        if (form[max(0, at - 1) : at] in _NUMERIC and found.start() == at) or form[found.end() :][:1] == "%":
            part = part.replace(r"\d{1,2}", r"\d\d")  # digits side by side
        is_fraction = (found[1] == "f" and pattern[-2:] in (r"\.", r"\,")) or (found[1] == "f" and pattern[-1:] == ",")
        if is_fraction:
            mark = 2 if pattern[-2:-1] == "\\" else 1
            pattern = f"{pattern[:-mark]}(?:{pattern[-mark:]}{part})?"
        else:
            pattern += part
        at = found.end()
    pattern += re.escape(form[at:])
    if not re.search(r"\?P<(d|m|b|Y)>", pattern):
        raise BadTimeRule(f"--time-format {form}: it names no date; write {ISO}, {', '.join(UNITS)}, or as %Y-%m-%d")
    try:
        return re.compile(pattern, re.IGNORECASE | re.ASCII)
    except re.error as error:
        raise BadTimeRule(f"--time-format {form}: a part is named twice") from error


@lru_cache(maxsize=4096)
def _day(year: str | None, short: str | None, month: str | None, name: str | None, day: str | None) -> int | None:
    """The ordinal of the day; None if the year is missing. Raises ValueError."""
    if year is None and short is None:
        return None
    number = int(year) if year is not None else 1900 + int(short or 0) + 100 * (int(short or 0) < 69)
    return date(number, _month(month, name), int(day or 1)).toordinal()


def _month(month: str | None, name: str | None) -> int:
    return int(month or 1) if name is None else _MONTHS.index(name[:3].lower()) + 1


def _clock_ms(parts: dict[str, str | None]) -> int:
    hour = int(parts.get("H") or 0)
    if (half := parts.get("I")) is not None:
        if not 1 <= int(half) <= 12:
            raise ValueError("no hour of 12")
        hour = int(half) % 12 + 12 * ((parts.get("p") or "a")[0] in "pP")
    minute, second = int(parts.get("M") or 0), int(parts.get("S") or 0)
    fraction = parts.get("f")
    ms = ((hour * 60 + minute) * 60 + second) * 1000 + (int(f"{fraction}00"[:3]) if fraction else 0)
    if (hour > 23 and ms != _DAY_MS) or minute > 59 or second > 60:
        raise ValueError("no time of a day")
    return ms


@lru_cache(maxsize=256)
def _offset(text: str) -> timedelta:
    if text[0] not in "+-":
        return timedelta(0)
    digits = text[1:].replace(":", "")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 23 or minutes > 59:
        raise ValueError("no offset")
    size = timedelta(hours=hours, minutes=minutes)
    return -size if text[0] == "-" else size


def _without_year(parts: dict[str, str | None], ms: int, zone: tzinfo, rule: TimeRule) -> int | None:
    """The newest such time that is at most a day after `rule.latest_ms`."""
    if rule.latest_ms is None:
        return None
    latest = datetime.fromtimestamp(rule.latest_ms / 1000, UTC) + timedelta(days=1)
    for year in range(latest.year + 1, latest.year - 5, -1):  # 29 February has no day in most years
        try:
            day = date(year, _month(parts.get("m"), parts.get("b")), int(parts.get("d") or 1))
        except ValueError:
            continue
        when = datetime.fromordinal(day.toordinal()) + timedelta(milliseconds=ms)
        if when.replace(tzinfo=zone) <= latest:
            return _local_ms(when, zone, rule.twice)
    return None


class Decision(msgspec.Struct, frozen=True):
    """The forms that read most values, the number of values that they read, and an example."""

    forms: tuple[str, ...]
    read: int
    of: int


def recognise(values: Sequence[Any], latest_ms: int | None = None) -> Decision:
    """Finds the form of values, in any zone. Several forms: the values do not decide which comes first of day, month
    and a year of two digits. `latest_ms`: how old they are at least, as of a `TimeRule`."""
    values = [value for value in values if value is not None and value != ""]
    if not values:
        return Decision((), 0, 0)
    counts = dict.fromkeys((ISO, *UNITS, *COMMON), 0)
    forms: list[str] = []
    for value in values[:: max(1, len(values) // NOMINATING)]:  # a form must read one of them; most forms read none
        forms += [form for form in counts if form not in forms and _reads(form, value)]
    for form in forms:
        counts[form] = sum(_reads(form, value) for value in values)
    best = max(counts.values())
    found = [form for form in forms if counts[form] == best] if best else []
    return Decision(_distinct(found, values, latest_ms), best, len(values))


def _reads(form: str, value: Any) -> bool:
    if form in UNITS:
        number = _number(value)
        low, high = next((low, high) for unit, low, high in _RANGES if unit == form)
        return number is not None and low <= number < high
    if form == ISO and _number(value) is not None:
        return False
    return reader(TimeRule(form))(value) is not None


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        return float(value) if _NUMBER.fullmatch(value) else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _distinct(forms: Sequence[str], values: Sequence[Any], latest_ms: int | None) -> tuple[str, ...]:
    """Only the first of the forms that read every value as the same time, and those with a year of two digits only if
    no value is in the future then, or if all others are like them."""
    different: dict[tuple[int | None, ...], str] = {}
    for form in forms:
        read = reader(TimeRule(form, latest_ms=_LATEST_MS))
        different.setdefault(tuple(read(value) for value in values), form)
    latest = (latest_ms or _LATEST_MS) + _DAY_MS
    past = [form for found, form in different.items() if "%y" not in form or max(ms or 0 for ms in found) <= latest]
    return tuple(past or different.values())


def is_before_1970(value: Any) -> bool:
    """Whether a value that is no time of any form would be one, if the log kept times before 1970."""
    text = str(value).strip()
    for form in (None, *COMMON):
        with suppress(ValueError):
            when = datetime.fromisoformat(text) if form is None else datetime.strptime(text, form)
            if when.year < _BEGIN.year:
                return True
    return False


def suggest(value: Any, values: Sequence[Any], latest_ms: int | None = None) -> tuple[str, ...]:
    """The formats to give for a value that no known form reads: they read this value, and the most of all `values`.
    Of a number each unit that reads it, if not all values are dates. `latest_ms`: as of `recognise`."""
    counts: dict[str, int] = {}
    for form in _formats(str(value).strip()):
        with suppress(BadTimeRule):
            read = reader(TimeRule(form, latest_ms=_LATEST_MS))
            is_date = re.search("%[mb]", form) if "%d" in form else "%Y" in form
            if is_date and read(value) is not None and not _MISLEADING.search(form):
                counts[form] = sum(read(each) is not None for each in values)
    best = max(counts.values(), default=0)
    if best < len(values) and _number(value) is not None:
        return tuple(unit for unit in UNITS if reader(TimeRule(unit))(value) is not None)
    found = [form for form in counts if counts[form] == best]
    return _distinct([form for form in found if "%y" in form.lower()] or found, values, latest_ms)


def _formats(text: str) -> Iterator[str]:
    """What a time's text may be, with a part in the place of each number."""
    text = re.sub(rf"(?<![A-Za-z])(?:{_NAMES})(?![A-Za-z])", "%b", text.replace("%", "%%"), flags=re.IGNORECASE)
    text = re.sub(r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*", "%A", text, flags=re.IGNORECASE)
    text = re.sub(r"(?<!\d)(?:19|20)\d\d(?![\d:])", "%Y", text, count=1)  # no zone: -2024
    text = re.sub(r"(?<=[:\d ])(?:Z|GMT|UTC|[+-]\d\d:?\d\d)$", "%z", text)
    hour, half = ("%I", "%p") if re.search(r"\d ?[ap]\.?m\b\.?", text, re.IGNORECASE) else ("%H", "")
    text = re.sub(r"(?<=\d)( ?)[ap]\.?m\b\.?", rf"\1{half}", text, flags=re.IGNORECASE)
    text = re.sub(r"(?<!\d)\d{4}:\d\d:\d\d(?![\d:])", "%Y:%m:%d", text, count=1)  # as cameras write it
    text = re.sub(r"(?<!\d)\d{1,2}:\d\d:\d\d([.,])\d+", rf"{hour}:%M:%S\1%f", text)
    text = re.sub(r"(?<!\d)\d{1,2}:\d\d:\d\d(?![\d:])", f"{hour}:%M:%S", text)
    text = re.sub(r"(?<!\d)\d{1,2}:\d\d(?![\d:])", f"{hour}:%M", text)
    text = re.sub(r"(?<!\d)\d{4}(?!\d)", "%Y", text, count=1)
    has_year, has_name = "%Y" in text, "%b" in text
    days: tuple[str, ...] = ("d",) if has_name else ("md", "dm")
    if not has_year:
        days = ("dy", "yd", "d") if has_name else ("ymd", "dmy", "mdy") if "-" in text else ("dmy", "mdy", "ymd")
        days = (*days, *(() if has_name else ("md", "dm")))
    clock = "" if "%M" in text else f"{hour[1]}MSf"
    numbers = re.findall(r"\d+", text)
    for day in days:
        parts = [*(f"%{each}" for each in (day + clock)[: len(numbers)])]
        if len(parts) == len(numbers):
            yield "".join(rest + part for rest, part in zip(re.split(r"\d+", text), [*parts, ""], strict=True))
    for whole in (
        "%Y%m%d",
        "%d%m%Y",
        "%m%d%Y",
        "%y%m%d",
        "%d%m%y",
        "%m%d%y",
        "%Y%m%d%H%M%S",
        "%y%m%d%H%M%S",
        "%Y%m%d%H%M",
    ):
        if len(numbers) == 1:
            yield text.replace(numbers[0], whole)
