"""The public types: bytes as text or base64, numbers within bounds, one row per error code."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, strategies as st

from raftlog.cluster.api.encoding import as_text, from_b64, to_b64
from raftlog.cluster.api.errors import ERRORS, ApiError, Code, Outcome
from raftlog.cluster.api.sessions import SessionIn
from raftlog.cluster.api.values import NUMBER_MAX
from raftlog.cluster.records.rows import both


def test_every_code_has_a_row_and_none_says_applied() -> None:
    """The table is complete. What may have happened is a 5xx and retryable, but for what a session forgot."""
    forgotten = {Code.SESSION_EXPIRED, Code.SEQUENCE_SETTLED}
    assert set(ERRORS) == set(Code)
    for code, row in ERRORS.items():
        assert 400 <= row.status <= 599
        assert row.outcome is not Outcome.APPLIED
        if row.outcome is Outcome.UNKNOWN:
            assert row.status in ((409,) if code in forgotten else (500, 504)), code
            assert row.retryable is (code not in forgotten)


@given(st.binary(max_size=200))
def test_bytes_are_text_or_base64_and_never_both(data: bytes) -> None:
    """Exactly one field is set, and it gives the bytes back."""
    text, coded = both(data, "auto")
    assert (text is None) is not (coded is None)
    assert (text.encode() if text is not None else from_b64(coded or "", "x")) == data
    assert both(data, "base64") == (None, to_b64(data))
    assert as_text(data, "base64") is None


@pytest.mark.parametrize("text", ["a", "ab=", "a===", "YQ", "Y Q==", "YQ==\n", "YQ==YQ==", "ä", "=", "YQ==="])
def test_base64_is_strict(text: str) -> None:
    """Cut, spaced, joined or foreign: refused by name."""
    with pytest.raises(ApiError, match="value_b64 is not base64") as refused:
        from_b64(text, "value_b64")
    assert refused.value.code is Code.BAD_REQUEST


@pytest.mark.parametrize("number", ["-1", str(NUMBER_MAX + 1), "9" * 400, "1.0", "1e3", "true", '"1"', "null"])
def test_numbers_in_bodies_are_exact(number: str) -> None:
    """Below 2**53 and whole, or refused."""
    with pytest.raises(msgspec.ValidationError, match=r"\$.ttl_ms"):
        msgspec.json.decode(f'{{"ttl_ms":{number}}}', type=SessionIn)


def test_unknown_fields_are_refused_and_the_last_of_two_counts() -> None:
    """A misspelt field is an error with its name; of a name given twice JSON's common rule takes the last."""
    with pytest.raises(msgspec.ValidationError, match="unknown field `tll_ms`"):
        msgspec.json.decode(b'{"tll_ms":1}', type=SessionIn)
    assert msgspec.json.decode(b'{"ttl_ms":1,"ttl_ms":2}', type=SessionIn).ttl_ms == 2
