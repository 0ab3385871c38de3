"""Keeps docs/modules.md equal to the code: the picture of the layers, and the table of the modules.

The picture is drawn from the import contracts of pyproject.toml, the table from the first sentences of the modules.
`python -m tests.house.architecture` (part of `make fix`) rewrites both between their markers.
tests/house/test_rules.py fails if the page differs.
"""

import sys
import tomllib
from collections.abc import Iterable, Iterator

from tests.house.rules import PACKAGES, ROOT, Finding, Source, first_sentence, project_files

PAGE = "docs/modules.md"
BEGIN = "<!-- modules: written by `make fix` -->"
END = "<!-- modules: end -->"
LAYERS_BEGIN = "<!-- layers: written by `make fix` -->"
LAYERS_END = "<!-- layers: end -->"
CONTRACTS = "pyproject.toml"
_WIDTH = 100  # of the picture, in characters
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
    """docs/modules.md lists every module with the first sentence of its docstring, and no other."""
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


def layers_picture(contracts: str) -> str:
    """The layers of each contract of pyproject.toml, drawn one below the other: a row imports only rows below it."""
    pictures = []
    for contract in tomllib.loads(contracts)["tool"]["importlinter"]["contracts"]:
        if contract["type"] == "layers":
            line = f"+{'-' * (_WIDTH - 2)}+"
            rows = [f"| {row:{_WIDTH - 4}} |" for row in map(_spaced, contract["layers"])]
            boxes = "\n".join([line, *(f"{row}\n{line}" for row in rows)])
            pictures.append(f"{contract['name']}:\n\n```text\n{boxes}\n```")
    return "\n\n".join(pictures)


def _spaced(layer: str) -> str:
    """The rooms of one layer; `:` in a contract separates rooms that may import each other."""
    return "  |  ".join(room.strip() for room in layer.split("|")).replace(" : ", " <-> ")


def page_shows_the_layers(files: Iterable[Source]) -> Iterator[Finding]:
    """docs/modules.md shows the layers as the contracts of pyproject.toml have them."""
    texts = {source.path: source.text for source in files if source.path in (PAGE, CONTRACTS)}
    contracts = texts.get(CONTRACTS) or (ROOT / CONTRACTS).read_text(encoding="utf-8")
    page = texts.get(PAGE, "")
    if LAYERS_BEGIN not in page or LAYERS_END not in page:
        mend = f"write {LAYERS_BEGIN!r} and {LAYERS_END!r} on lines of their own"
        yield Finding(PAGE, 1, "the page or its markers are missing", mend)
    elif page.partition(LAYERS_BEGIN)[2].partition(LAYERS_END)[0].strip() != layers_picture(contracts):
        line = page[: page.index(LAYERS_BEGIN)].count("\n") + 1
        yield Finding(PAGE, line, f"not the layers of {CONTRACTS}", _MEND)


def rewritten(page: str, files: Iterable[Source]) -> str:
    """The page with its table written again; what stands outside the markers stays."""
    return _replaced(page, BEGIN, END, module_table(files))


def _replaced(page: str, begin: str, end: str, text: str) -> str:
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def _modules(files: Iterable[Source]) -> Iterator[Source]:
    return (source for source in files if source.is_python and source.top in PACKAGES)


def _order(source: Source) -> tuple[int, str, bool, str]:
    folder, _, name = source.path.rpartition("/")
    return PACKAGES.index(source.top), folder, name != "__init__.py", name


def _between(text: str) -> str:
    return text.partition(BEGIN)[2].partition(END)[0]


def main() -> int:
    """Rewrites picture and table; 1 if the page lacks their markers."""
    page = ROOT / PAGE
    text = page.read_text(encoding="utf-8")
    if missing := [marker for marker in (BEGIN, END, LAYERS_BEGIN, LAYERS_END) if marker not in text]:
        print(f"{PAGE} lacks its markers: {', '.join(missing)}", file=sys.stderr)
        return 1
    new = _replaced(text, LAYERS_BEGIN, LAYERS_END, layers_picture((ROOT / CONTRACTS).read_text(encoding="utf-8")))
    if (new := rewritten(new, project_files())) != text:
        page.write_text(new, encoding="utf-8")
        print(f"rewrote the layers and the module table of {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
