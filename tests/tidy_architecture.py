"""Keeps the module table of docs/architecture.md equal to the first sentences of the modules.

`python -m tests.tidy_architecture` (part of `make fix`) rewrites the table between its markers; tests/test_tidy.py
fails when it is not what this would write.
"""

import sys
from collections.abc import Iterable, Iterator

from tests.tidy_rules import PACKAGES, ROOT, Finding, Source, first_sentence, project_files

PAGE = "docs/architecture.md"
BEGIN = "<!-- modules: written by `make fix` -->"
END = "<!-- modules: end -->"
_MEND = "make fix"


def module_table(files: Iterable[Source]) -> str:
    """The table: one row per module of the packages, in the order of the layout, packages before their modules."""
    rows = ["| module | what it is for |", "| --- | --- |"]
    for source in sorted(_modules(files), key=_order):
        name = source.path.removesuffix("__init__.py")
        sentence = first_sentence(source) or ""
        rows.append(f"| `{name}` | {sentence.replace('|', chr(92) + '|')} |")
    return "\n".join(rows)


def page_lists_every_module(files: Iterable[Source]) -> Iterator[Finding]:
    """docs/architecture.md lists every module with the first sentence of its docstring, and no other."""
    files = list(files)
    page = next((source for source in files if source.path == PAGE), None)
    if page is None or BEGIN not in page.text or END not in page.text:
        mend = f"write {BEGIN!r} and {END!r} on lines of their own"
        yield Finding(PAGE, 1, "the page or its markers are missing", mend)
        return
    start = page.text[: page.text.index(BEGIN)].count("\n") + 1
    written = {row: start + number for number, row in enumerate(_between(page.text).splitlines(), start=1) if row}
    expected = dict.fromkeys(module_table(files).splitlines())
    for row, line in written.items():
        if row not in expected:
            yield Finding(PAGE, line, f"not what the module says: {row}", _MEND)
    for row in expected:
        if row not in written:
            yield Finding(PAGE, start, f"not listed: {row}", _MEND)


def rewritten(page: str, files: Iterable[Source]) -> str:
    """The page with its table written anew; what stands outside the markers stays."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{module_table(files)}\n\n{END}{after}"


def _modules(files: Iterable[Source]) -> Iterator[Source]:
    return (source for source in files if source.is_python and source.top in PACKAGES)


def _order(source: Source) -> tuple[int, str, bool, str]:
    folder, _, name = source.path.rpartition("/")
    return PACKAGES.index(source.top), folder, name != "__init__.py", name


def _between(text: str) -> str:
    return text.partition(BEGIN)[2].partition(END)[0]


def main() -> int:
    """Rewrites the table; 1 if the page lacks its markers."""
    page = ROOT / PAGE
    text = page.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        print(f"{PAGE} lacks its markers: {BEGIN} and {END}", file=sys.stderr)
        return 1
    if (new := rewritten(text, project_files())) != text:
        page.write_text(new, encoding="utf-8")
        print(f"rewrote the module table of {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
