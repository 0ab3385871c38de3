"""Times are recognised from their values; a doubt is reported, never guessed."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from raftlog.cluster.importer.formats.times import (
    LEAP,
    NEVER,
    SYSLOG_3164,
    TWICE,
    BadTimeRule,
    TimeRule,
    doubt,
    reader,
    recognise,
    suggest,
)


def ms(*when: int) -> int:
    """Unix milliseconds of a time in UTC."""
    return round(datetime(*when, tzinfo=UTC).timestamp() * 1000)  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    ("value", "form", "expected"),
    [
        ("2016/01/01 00:30:04.91", "%Y/%m/%d %H:%M:%S.%f", ms(2016, 1, 1, 0, 30, 4) + 910),
        ("2016-01-01T00:30:04Z", "iso", ms(2016, 1, 1, 0, 30, 4)),
        ("2016-01-01 00:30:04.5+02:00", "iso", ms(2015, 12, 31, 22, 30, 4) + 500),
        ("20160101T003004", "iso", ms(2016, 1, 1, 0, 30, 4)),
        (1451608204, "s", ms(2016, 1, 1, 0, 30, 4)),
        ("1451608204.91", "s", ms(2016, 1, 1, 0, 30, 4) + 910),
        ("1.451608204e9", "s", ms(2016, 1, 1, 0, 30, 4)),
        (1451608204910, "ms", ms(2016, 1, 1, 0, 30, 4) + 910),
        ("1451608204910123", "us", ms(2016, 1, 1, 0, 30, 4) + 910),
        (1451608204910123456, "ns", ms(2016, 1, 1, 0, 30, 4) + 910),
        ("20160101003004", "%Y%m%d%H%M%S", ms(2016, 1, 1, 0, 30, 4)),
        (20160101, "%Y%m%d", ms(2016, 1, 1)),
        ("31/12/2016 23:59", "%d/%m/%Y %H:%M", ms(2016, 12, 31, 23, 59)),
        ("12/31/2016 11:59:59 PM", "%m/%d/%Y %I:%M:%S %p", ms(2016, 12, 31, 23, 59, 59)),
        ("31.12.2016", "%d.%m.%Y", ms(2016, 12, 31)),
        ("Jan 5, 2016", "%b %d, %Y", ms(2016, 1, 5)),
        ("10/Oct/2000:13:55:36 -0700", "%d/%b/%Y:%H:%M:%S %z", ms(2000, 10, 10, 20, 55, 36)),
        ("Tue, 05 Jan 2016 10:00:00 GMT", "%a, %d %b %Y %H:%M:%S %z", ms(2016, 1, 5, 10)),
        ("Tue Jan 05 2016 10:00:00 GMT+0100", "%a %b %d %Y %H:%M:%S GMT%z", ms(2016, 1, 5, 9)),
        ("Tue Jan  5 10:00:00 2016", "%a %b %d %H:%M:%S %Y", ms(2016, 1, 5, 10)),
        ("2016-01-05 10:00:00,25", "iso", ms(2016, 1, 5, 10) + 250),
    ],
)
def test_a_common_form_is_recognised_and_read(value: Any, form: str, expected: int) -> None:
    """One value is enough where it has one meaning."""
    told = recognise([value, None, ""])
    assert (told.forms, told.read, told.of) == ((form,), 1, 1)
    assert reader(TimeRule(form))(value) == expected


def test_day_and_month_are_decided_by_the_values_or_not_at_all() -> None:
    """A day above 12 decides; without one both forms are returned, and none is chosen."""
    assert recognise(["05/06/2016"]).forms == ("%d/%m/%Y", "%m/%d/%Y")
    assert recognise(["05/06/2016", "25/06/2016"]).forms == ("%d/%m/%Y",)
    assert recognise(["05/06/2016", "06/25/2016"]).forms == ("%m/%d/%Y",)
    assert recognise(["05/05/2016"]).forms == ("%d/%m/%Y",)  # both mean the same


@pytest.mark.parametrize("values", [["yesterday"], [5], ["12:30"], [True], [{"a": 1}], [None], ["2016/13/41"], []])
def test_a_value_that_is_no_time_has_no_form(values: list[Any]) -> None:
    """A small number, a time of the day alone, and a date that does not exist."""
    assert recognise(values).forms == ()


def test_a_zone_moves_only_values_without_one() -> None:
    """Names know summer time, offsets do not; a value's own zone is kept."""
    berlin, offset = TimeRule("%Y/%m/%d %H:%M", "Europe/Berlin"), TimeRule("%Y/%m/%d %H:%M", "+02:00")
    assert reader(berlin)("2016/07/01 12:00") == ms(2016, 7, 1, 10)
    assert reader(berlin)("2016/01/01 12:00") == ms(2016, 1, 1, 11)
    assert reader(offset)("2016/01/01 12:00") == ms(2016, 1, 1, 10)
    assert reader(TimeRule("iso", "Europe/Berlin"))("2016-07-01T12:00") == ms(2016, 7, 1, 10)
    assert reader(TimeRule("iso", "Europe/Berlin"))("2016-07-01T12:00Z") == ms(2016, 7, 1, 12)
    for bad in ("Europe/Atlantis", "+25:00", "+05:99", "+5"):
        with pytest.raises(BadTimeRule, match=r"no such zone.*\+02:00"):
            reader(TimeRule("iso", bad))


def test_a_time_without_a_year_is_the_newest_before_the_files_age() -> None:
    """A log of January holds December of the year before; 29 February finds its leap year."""
    read = reader(TimeRule(SYSLOG_3164, "UTC", ms(2026, 1, 3)))
    assert read("Jan  2 10:00:00") == ms(2026, 1, 2, 10)
    assert read("Dec 31 10:00:00") == ms(2025, 12, 31, 10)
    assert read("Feb 29 10:00:00") == ms(2024, 2, 29, 10)


def test_times_before_1970_and_odd_values_are_none() -> None:
    """The log keeps no negative times."""
    odd: list[tuple[str, Any]] = [
        ("iso", "1969-12-31T23:59:59Z"),
        ("%Y/%m/%d", "1960/01/01"),
        ("s", -5),
        ("s", True),
        ("ms", "x"),
        ("%Y/%m/%d %H:%M", "2016/01/01 25:00"),
        ("s", 1e300),
        ("iso", 5),
        ("s", 1_577_836_800_000),
        ("ms", 1_577_836_800_000_000),
        ("us", "1577836800000000000"),
        ("%Y/%m/%d %H:%M %z", "2016/01/01 10:00 +05:99"),
        ("%Y/%m/%d %H:%M %z", "2016/01/01 10:00 +25:00"),
        ("%d.%m.%Y %H:%M", "31.12.2016 24:01"),
        ("%d.%m.%Y %H:%M:%S", "31.12.2016 24:30:00"),
    ]
    for form, value in odd:
        assert reader(TimeRule(form))(value) is None


@pytest.mark.parametrize("form", ["%Q", "nonsense", "%H:%M", "%Y %Y", "%"])
def test_a_form_that_means_nothing_is_refused(form: str) -> None:
    """The message says how to write one."""
    with pytest.raises(BadTimeRule, match="--time-format"):
        reader(TimeRule(form))


NOW_MS = ms(2026, 11, 30)
SUGGESTED = [
    ("24-01-31 10:00:00", "%y-%m-%d %H:%M:%S"),
    ("31-01-24 10:00:00", "%d-%m-%y %H:%M:%S"),
    ("01-02-03", "%y-%m-%d", "%d-%m-%y", "%m-%d-%y"),
    ("24-01-31T10:00:00Z", "%y-%m-%dT%H:%M:%S%z"),
    ("31.01.24", "%d.%m.%y"),
    ("24.01.31 10:00", "%y.%m.%d %H:%M"),
    ("24_01_31", "%y_%m_%d"),
    ("13:00:00 24-01-31", "%H:%M:%S %y-%m-%d"),
    ("12:30 31-10-2024", "%H:%M %d-%m-%Y"),
    ("24-Oct-31", "%y-%b-%d"),
    ("31OCT24", "%d%b%y"),
    ("31OCT2024:12:30:00", "%d%b%Y:%H:%M:%S"),
    ("31/Oct/13:12:30:00 +0000", "%d/%b/%y:%H:%M:%S %z"),
    ("31-OCT-24 12.30.00.000000 PM", "%d-%b-%y %I.%M.%S.%f %p"),
    ("2016:01:01", "%Y:%m:%d"),
    ("1. of 2 2016 at 10:20:30.5", "%m. of %d %Y at %H:%M:%S.%f", "%d. of %m %Y at %H:%M:%S.%f"),
    ("Jan 5 24 10:00:01 AM", "%b %d %y %I:%M:%S %p"),
    ("2024-01-31 at 10.11.12", "%Y-%m-%d at %H.%M.%S"),
    ("5. May 2024 10:00 Uhr", "%d. %b %Y %H:%M Uhr"),
    ("2024_01_31", "%Y_%m_%d"),
    ("241031", "%y%m%d"),
    ("31102024", "%d%m%Y"),
    ("2024", "%Y"),
    ("100% 2024/31/12",),
    ("x 240131", "x %y%m%d"),
    ("24.12.99 23:59:59,123", "%d.%m.%y %H:%M:%S,%f"),
    ("31. Oktober 2024",),
    ("31st October 2024",),
    ("Q4 2024",),
    ("2024-10-31 12:30:00 CET",),
    ("2024-10-31 12:30:00 Europe/Berlin",),
]


@pytest.mark.parametrize(("value", "forms"), [(value, tuple(forms)) for value, *forms in SUGGESTED])
def test_a_suggested_form_reads_its_value_and_has_no_digits_of_it(value: str, forms: tuple[str, ...]) -> None:
    """All that may be meant, without dates in the future. None where a word would stand for a month or a zone."""
    assert suggest(value, [value], NOW_MS) == forms
    assert all(reader(TimeRule(form))(value) is not None for form in forms)


def test_a_year_of_two_digits_may_come_first_or_last() -> None:
    """The values decide, and that none of them is in the future."""
    assert recognise(["24/10/31"], NOW_MS).forms == ("%y/%m/%d",)
    assert recognise(["31/10/24"], NOW_MS).forms == ("%d/%m/%y",)
    assert recognise(["01/02/03"], NOW_MS).forms == ("%d/%m/%y", "%m/%d/%y", "%y/%m/%d")
    assert recognise(["28/10/29"], NOW_MS).forms == ("%d/%m/%y", "%y/%m/%d")  # both are in the future
    assert recognise(["241031123000"], NOW_MS).forms == ("ms", "%y%m%d%H%M%S")


@given(st.text("0123456789-/.: %TZJanMy'", max_size=24), st.lists(st.text("0123456789-: ", max_size=12), max_size=3))
@example("0001%Z", [])
def test_no_suggestion_is_nonsense(value: str, others: list[str]) -> None:
    """Whatever the text: each suggestion reads it, and has no digit."""
    for form in suggest(value, [value, *others]):
        assert not any(each.isdigit() for each in form)
        assert reader(TimeRule(form, latest_ms=4 * 10**12))(value) is not None


def test_the_form_of_most_values_is_suggested() -> None:
    """One value can be read in several ways, and the others decide. A number may be of each unit that reads it."""
    assert suggest("10-11-12", ["10-11-12", "31-10-99"]) == ("%d-%m-%y",)
    assert suggest("10-11-12", ["10-11-12", "10-31-99"]) == ("%m-%d-%y",)
    assert suggest("46000.5", ["46000.5"]) == ("s", "ms", "us", "ns")
    assert suggest("-5", ["-5"]) == suggest("soon", ["soon"]) == ()


LOCAL = [
    ("Europe/Berlin", "2024-10-27 02:30:00", "twice", 3_600_000),
    ("Europe/Berlin", "2024-10-27 01:59:59", None, 0),
    ("Europe/Berlin", "2024-03-31 02:30:00", "never", 0),
    ("Europe/Berlin", "2024-03-31 03:00:00", None, 0),
    ("America/New_York", "2024-11-03 01:00:00", "twice", 3_600_000),
    ("America/New_York", "2024-11-03 02:00:00", None, 0),
    ("Australia/Lord_Howe", "2024-04-07 01:45:00", "twice", 1_800_000),
    ("Pacific/Apia", "2011-12-30 12:00:00", "never", 0),
    ("Australia/Lord_Howe", "2024-10-06 02:15:00", "never", 0),
    ("+02:00", "2024-10-27 02:30:00", None, 0),
    ("UTC", "2024-03-31 02:30:00", None, 0),
]


@pytest.mark.parametrize(("zone", "text", "doubts", "apart_ms"), LOCAL)
def test_local_times_that_occur_twice_or_never_are_known(
    zone: str, text: str, doubts: str | None, apart_ms: int
) -> None:
    """In each form: the rule chooses one of two times; a time that clocks are put forward over is none."""
    when = datetime.fromisoformat(text)
    for form in ("iso", "%d.%m.%Y %H:%M:%S", "%Y/%m/%d %I:%M %p", "%b %d %H:%M:%S"):
        value = when.strftime(form) if form != "iso" else text
        latest = None if form != "%b %d %H:%M:%S" else int(when.replace(tzinfo=UTC).timestamp() * 1_000) + 10**9
        earlier, later = (reader(TimeRule(form, zone, latest, twice))(value) for twice in ("earlier", "later"))
        told = doubt(TimeRule(form, zone, latest), value)
        assert told == {"twice": TWICE, "never": NEVER, None: None}[doubts], form
        if doubts == "never":
            assert earlier is later is None
        else:
            assert earlier is not None
            assert later is not None
            assert later - earlier == apart_ms


NEW_YEAR = [
    ("iso", "2016-12-31T23:59:60Z"),
    ("iso", "2016-12-31t23:59:60z"),
    ("iso", "2016-12-31T23:59:60+00:00"),
    ("iso", "20161231T235960Z"),
    ("iso", "2017-01-01T05:29:60+05:30"),
    ("iso", "2016-12-31 23:59:60"),
    ("iso", "2016-W52-6T23:59:60Z"),
    ("%Y-%m-%d-%H.%M.%S", "2016-12-31-23.59.60"),
    ("%Y%m%d%H%M%S", "20161231235960"),
    ("%d.%m.%Y %H:%M:%S", "31.12.2016 23:59:60"),
    ("%d/%b/%Y:%H:%M:%S %z", "31/Dec/2016:23:59:60 +0000"),
    ("iso", "2016-12-31T24:00:00Z"),
    ("iso", "2016-12-31T24:00"),
    ("%d.%m.%Y %H:%M", "31.12.2016 24:00"),
    ("%d.%m.%Y %H:%M:%S", "31.12.2016 24:00:00"),
]


@pytest.mark.parametrize(("form", "text"), NEW_YEAR)
def test_a_leap_second_is_the_next_second(form: str, text: str) -> None:
    """So is the end of a day, in every form. Other times beyond the end of a minute or a day are none."""
    assert reader(TimeRule(form))(text) == 1_483_228_800_000
    assert (doubt(TimeRule(form), text) == LEAP) is ("60" in text)
    assert reader(TimeRule("iso"))("2016-12-31T23:59:60.25Z") == 1_483_228_800_250
    for bad in ("2016-12-31T23:59:61Z", "2016-12-31T23:60:00Z", "2016-12-31T24:00:01Z", "2016-12-31T24:01Z", "x:60"):
        assert reader(TimeRule("iso"))(bad) is None, bad


@given(st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)))
def test_what_strftime_writes_is_read_back(when: datetime) -> None:
    """Every form with a date, to its own precision."""
    for form in ("%Y/%m/%d %H:%M:%S.%f", "%d.%m.%Y %H:%M:%S", "%m/%d/%Y %I:%M:%S %p", "%d %B %Y %H:%M:%S"):
        exact = when if "%f" in form else when.replace(microsecond=0)
        expected = (exact.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000
        assert reader(TimeRule(form))(when.strftime(form)) == int(expected + 1e-6)


@example("2016/01/02 03:04:05.٣")
@example("2016/01/02 03:04:05.1234567890")
@given(st.from_regex(r"2016[/-]0?1/\d\d? ?[0-2]?\d:[0-6]\d:[0-6]\d([.,:]\d{0,10})? ?[٣+]?", fullmatch=True))
def test_an_hour_that_is_read_once_gives_the_same_times(text: str) -> None:
    """A zone that once changed is read by the general reader, and both agree, also where a text is no time."""
    for form in ("%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S,%f", "%Y/%m/%d %H:%M:%S"):
        assert reader(TimeRule(form))(text) == reader(TimeRule(form, "Africa/Abidjan"))(text)
