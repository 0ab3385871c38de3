"""The fields of syslog lines, new and old; a line that is no syslog has none."""

import pytest

from raftlog.cluster.importer.formats.syslog import fields_of, is_syslog_line

NEW = (
    '<165>1 2003-10-11T22:14:15.003Z mymachine.example.com evntslog - ID47 [exampleSDID@32473 iut="3" '
    'eventSource="App\\]"][b@1 c="d"] \ufeffAn application event'
)
OLD = "<34>Oct  1 22:14:15 mymachine su[12]: 'su root' failed for lonvick"


def test_the_fields_of_rfc_5424() -> None:
    """The example of RFC 5424 section 6.5, with an escaped bracket; `-` is missing."""
    fields = fields_of(NEW)
    assert fields is not None
    assert (fields["host"], fields["app"], fields["msgid"]) == ("mymachine.example.com", "evntslog", "ID47")
    assert (fields["severity"], fields["facility"], fields["message"]) == ("notice", "20", "An application event")
    assert fields["data"].endswith('[b@1 c="d"]')
    assert "procid" not in fields
    bare = fields_of("<13>1 - - - - - -")
    assert bare is not None
    assert "time" not in bare


def test_the_fields_of_rfc_3164() -> None:
    """The example of RFC 3164 section 5.4; files have no priority, and newer daemons an ISO time."""
    fields = fields_of(OLD)
    assert fields is not None
    assert (fields["time"], fields["host"], fields["app"]) == ("Oct  1 22:14:15", "mymachine", "su")
    assert (fields["procid"], fields["severity"]) == ("12", "crit")
    plain = fields_of("Oct 11 22:14:15 host kernel: usb 1-1: new device")
    assert plain is not None
    assert (plain["app"], plain["message"]) == ("kernel", "usb 1-1: new device")
    iso = fields_of("2026-01-31T12:00:00.5+01:00 host app: m")
    assert iso is not None
    assert iso["time"] == "2026-01-31T12:00:00.5+01:00"


@pytest.mark.parametrize("line", ["", "hello", '{"a": 1}', "<999>1 - - - - - -", "<13>", "Oct 11 22:14 host x: y"])
def test_other_lines_are_no_syslog(line: str) -> None:
    """A priority has a limit, and a time has seconds."""
    assert fields_of(line) is None
    assert not is_syslog_line(line.encode())
