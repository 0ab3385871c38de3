"""CSV dialects and charsets are guessed from the first bytes, and quotes decide where a row ends."""

import pytest
from hypothesis import given, strategies as st

from raftlog.cluster.importer.formats.dialect import (
    Dialect,
    cells_of,
    charset_of,
    dialect_of,
    is_row_open,
    is_table,
    looks_like_data,
    rows_of,
)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_that_of_equal_rows(delimiter: str) -> None:
    """Other delimiters inside the cells do not deceive it."""
    lines = [delimiter.join(("name", "text", "n")), *(delimiter.join(("a, b", f"x; y {n}", f"{n}")) for n in range(9))]
    if delimiter in ",;":
        lines = [line.replace("a, b", '"a, b"').replace("x; y", "x y") for line in lines]
    assert dialect_of(lines).delimiter == delimiter
    assert is_table(lines)


def test_sentences_with_commas_are_no_table() -> None:
    """Their first line would be lost as the names of columns. (Found by the benchmark of imports.)"""
    assert not is_table([f"a line of some text, number {number}, and more" for number in range(9)])
    assert is_table(["at,first name,n", *["1,x, y"] * 9])


def test_quotes_and_escapes() -> None:
    """Single quotes, and quotes behind a backslash."""
    assert dialect_of(["a,b", "'x, y',1"]) == Dialect(",", "'")
    backslash = dialect_of(["a,b", '"he said \\"no\\", then",1'])
    assert backslash == Dialect(",", '"', "\\")
    assert not is_row_open(rb'"a\\",1', backslash)
    assert rows_of(['"he said \\"no\\", then",1'], backslash) == [['he said "no", then', "1"]]
    assert rows_of(['"he said ""no""",1'], Dialect()) == [['he said "no"', "1"]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('a,"b', True),
        ('a,"b"', False),
        ('a,"b""', True),
        ('a,"b""c"', False),
        ('5" pipe,3', False),
        ('"', True),
        ('""', False),
        ("", False),
        ('"a"x,"b', True),
        ('a,"x, ""y""', True),
        ('a,"', True),
    ],
)
def test_a_row_is_open_while_a_quoted_field_is(text: str, expected: bool) -> None:
    """A quote inside an unquoted field is text: it does not swallow the next lines."""
    assert is_row_open(text.encode(), Dialect()) is expected
    assert is_row_open(text.encode() + b"\r\n", Dialect()) is expected
    assert is_row_open(text.replace('"', "'").replace(",", "§").encode(), Dialect("§", "'")) is expected


@given(st.lists(st.text(alphabet='a,"\n', max_size=8), min_size=1, max_size=4))
def test_a_written_row_is_closed_exactly_at_its_end(cells: list[str]) -> None:
    """Whatever the cells hold: every shorter part that ends at a line end inside quotes is open."""
    row = ",".join('"' + cell.replace('"', '""') + '"' for cell in cells)
    assert not is_row_open(f"{row}\n".encode(), Dialect())
    assert is_row_open(f"{row[:-1]}\n".encode(), Dialect())


def test_numbers_above_numbers_look_like_data() -> None:
    """A year as the name of a column is not enough, if the column holds text."""
    assert looks_like_data(["1", "a"], ["2", "b"])
    assert not looks_like_data(["2016", "a"], ["x", "b"])
    assert not looks_like_data(["id", "n"], ["1", "2"])


@given(
    st.lists(st.text("a\"',;|\t \\é\n", max_size=6), min_size=1, max_size=4),
    st.sampled_from([*"\t,;|"]),
    st.lists(st.text(" \t", max_size=2), min_size=8, max_size=8),
)
def test_blanks_beside_quotes_belong_to_no_cell(cells: list[str], delimiter: str, blanks: list[str]) -> None:
    """A quoted cell keeps its own blanks, delimiters, quotes and line ends."""
    blanks = [each.replace(delimiter, "") for each in blanks]
    quoted = ['"' + cell.replace('"', '""') + '"' for cell in cells]
    text = delimiter.join(blanks[2 * at] + cell + blanks[2 * at + 1] for at, cell in enumerate(quoted))
    dialect = Dialect(delimiter, space=True)
    assert [*cells_of([text], dialect)] == [cells]
    assert not is_row_open(text.encode(), dialect)


@given(st.lists(st.text(alphabet="a1,;|\t", max_size=6), min_size=2, max_size=5), st.data())
def test_the_order_of_the_lines_does_not_decide(lines: list[str], data: st.DataObject) -> None:
    """A file with its rows sorted otherwise is written in the same dialect."""
    other = data.draw(st.permutations(lines))
    assert dialect_of(other) == dialect_of(lines)


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "名,数\n東京,1\n", "x,😀😀😀\n1,😀\n", "é;ß\n1;2\n"])
@pytest.mark.parametrize("charset", ["utf-8", "utf-16-le", "utf-16-be", "windows-1252"])
@pytest.mark.parametrize("has_mark", [False, True])
def test_wherever_the_first_bytes_end_the_charset_is_that_of_the_file(text: str, charset: str, has_mark: bool) -> None:
    """They end within a character, a pair of surrogates or a line; behind as many bytes as are looked at, too."""
    whole = ("\ufeff" * has_mark + text * 300).encode(charset, "ignore")
    expected = charset_of(whole, is_whole=True)
    for at in (*range(len(text.encode("utf-16-le")) + 4, 200), *range(4_090, 4_110)):
        assert charset_of(whole[:at], is_whole=False) == expected, at
