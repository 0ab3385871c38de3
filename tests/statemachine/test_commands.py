"""Numbers that are in every log for ever, and the limits that every replica must agree on."""

from dataclasses import fields

import pytest

from raftlog.statemachine.commands import (
    INTERNAL_FIRST,
    BadParameter,
    CompareOperator,
    CompareTarget,
    Limits,
    Operation,
    Result,
)


def test_numbers_stay_for_ever() -> None:
    """Operations, results and compares keep their numbers: they are in logs, ledgers and snapshots."""
    assert {one.name: one.value for one in Operation} == {
        "APPEND": 1,
        "PUT": 2,
        "DELETE": 3,
        "DELETE_RANGE": 4,
        "TXN": 5,
        "COMPACT": 32,
        "SESSION_OPEN": 33,
        "SESSION_KEEPALIVE": 34,
        "SESSION_CLOSE": 35,
        "VOID": 36,
        "TRIM": 40,
        "DIGEST_POINT": 41,
        "CONSUMER": 42,
        "ACCESS": 43,
    }
    assert {one.name: one.value for one in Result} == {
        "APPLIED": 1,
        "REPEATED": 2,
        "COMPARE_FAILED": 3,
        "REFUSED": 4,
        "EXPIRED": 5,
        "VOIDED": 6,
    }
    assert [one.value for one in (*CompareTarget, *CompareOperator)] == [1, 2, 3, 4, 1, 2, 3, 4]
    assert INTERNAL_FIRST == 32


def test_limits_take_parameters_by_name() -> None:
    """A parameter replaces its limit and leaves the others as they were, also those set before."""
    limits = Limits().with_parameters((("sessions_max", 5),)).with_parameters((("digests_kept", 7),))
    assert limits == Limits(sessions_max=5, digests_kept=7)


@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
@pytest.mark.parametrize("value", [0, -1, 2**53, True, "1"])
def test_limits_out_of_range_are_refused(name: str, value: int) -> None:
    """Every limit is a whole number from 1 to 2**53 - 1; the error names it."""
    with pytest.raises(BadParameter, match=name):
        Limits().with_parameters(((name, value),))


def test_an_unknown_parameter_is_refused_by_name() -> None:
    """The error names the unknown parameter and the known ones."""
    with pytest.raises(BadParameter, match=r"no such limit: session_max; there are .*sessions_max"):
        Limits().with_parameters((("session_max", 5),))
    with pytest.raises(BadParameter, match="lower the one or raise the other"):
        Limits(session_ttl_min_ms=2, session_ttl_max_ms=1)
