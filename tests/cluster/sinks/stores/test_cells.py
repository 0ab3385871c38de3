"""Cells as text and as JSON are the same cells again, and no two rows have one name."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st

from raftlog.cluster.sinks.columns import number_text
from raftlog.cluster.sinks.mapping import RowMapping, SinkColumn, SinkSource
from raftlog.cluster.sinks.stores.cells import (
    KeyTemplate,
    cell_of_text,
    cells_of_json,
    encode_json,
    members_of,
    text_of,
)
from raftlog.cluster.sinks.verify import canonical
from tests.cluster.sinks.stores.kit import KINDS

COLUMNS = RowMapping(SinkSource(records=""), KINDS, ["id"]).columns
ANY = SinkColumn("any", "value.any", None)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.decimals(allow_nan=False, allow_infinity=False, places=40)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text()
VALUES = st.recursive(SCALARS, lambda each: st.lists(each) | st.dictionaries(st.text(), each), max_leaves=8)


@given(VALUES | st.floats() | st.binary() | st.dates() | st.datetimes(timezones=st.just(UTC)))
def test_a_cell_without_a_type_comes_back(cell: Any) -> None:
    """As `verify` compares it, with every digit of a number."""
    if isinstance(cell, bytes):
        cell = cell_of_text(cell, ANY)  # the mapping gives text where bytes are text
    if isinstance(cell, bytes):
        with pytest.raises(ValueError, match="any is no UTF-8 text: give it the type binary"):
            members_of([ANY], (cell,))
        return
    wanted = canonical(cell, ANY)
    text = encode_json(members_of([ANY], (cell,)))
    assert json.loads(text) is not None
    assert canonical(cells_of_json(text, [ANY])["any"], ANY) == wanted
    if cell is not None:
        assert canonical(cell_of_text(text_of(cell, ANY), ANY), ANY) == wanted


@pytest.mark.parametrize("text", [b"", b"[]", b"1", b"{", b'{"other":1}', b"\xff"])
def test_other_text_has_no_cells(text: bytes) -> None:
    """Somebody else wrote it."""
    assert cells_of_json(text, COLUMNS) == {}


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (Decimal("1.50"), "1.5"),
        (1e3, "1000"),
        (10**30 + 1, "1" + "0" * 29 + "1"),
        (Decimal("-0.10"), "-0.1"),
        (Decimal("1E-10"), "0.0000000001"),
        (Decimal("123456789012345678901234567890.120"), "123456789012345678901234567890.12"),
    ],
)
def test_a_number_has_one_form_with_every_digit(number: float | Decimal, text: str) -> None:
    """Also with more digits than Python's decimals have by default."""
    assert number_text(number) == text


@pytest.mark.parametrize(
    ("cell", "kind", "text"),
    [
        (Decimal("9.50"), "decimal(10,2)", b"9.50"),
        (Decimal("9.50"), None, b"9.5"),
        (True, "boolean", b"true"),
        (date(2026, 1, 2), "date", b"2026-01-02"),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "timestamp", b"2026-01-02T03:04:05+00:00"),
        ({"b": 1, "a": [None]}, None, b'{"a":[null],"b":1}'),
        (b"\xff", "binary", b"\xff"),
    ],
)
def test_a_cell_as_text(cell: Any, kind: str | None, text: bytes) -> None:
    """The forms that docs/sinks.md names."""
    assert text_of(cell, SinkColumn("c", "value.c", kind)) == text


PIECES = st.text(alphabet="ab:", max_size=4).map(str.encode)


@given(
    st.lists(st.tuples(PIECES, PIECES), min_size=2, max_size=8), st.sampled_from(["{a}:{b}", "x{b}::{a}:", "{b}a{a}"])
)
def test_two_rows_never_have_one_name(keys: list[tuple[bytes, bytes]], template: str) -> None:
    """A key whose name would be read as another one is refused."""
    names = KeyTemplate(template, ["a", "b"])
    made: dict[bytes, tuple[bytes, bytes]] = {}
    for key in keys:
        try:
            name = names.name(key)
        except ValueError:
            continue
        assert made.setdefault(name, key) == key
        assert tuple(names.key_of(name)) == key


@pytest.mark.parametrize("template", ["k", "{a}", "{a}{b}", "{a}:{b}:{a}", "{a}:{c}", "{}:{a}:{b}"])
def test_a_template_names_the_primary_key(template: str) -> None:
    """Each column once, with text between them."""
    with pytest.raises(ValueError, match="key is"):
        KeyTemplate(template, ["a", "b"])


def test_braces_may_be_text() -> None:
    """As other programs write them."""
    assert KeyTemplate("shop:{{id}}", ["id"]).name([b"1"]) == b"shop:{1}"
