"""Keeps references and words plain: each reference leads somewhere in the repository, and no prose has a riddle word.

docs/glossary.md lists the words: those of its columns "do not write" and "instead of".
"""

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from tests.house.rules import ROOT, Finding, Source

GLOSSARY = "docs/glossary.md"
PROMISES = "docs/promises.md"

NOT_COUNTED = {
    GLOSSARY: "lists the words",
    "tests/house/words.py": "this rule",
    "tests/house/test_rules.py": "plants the words",
    "CHANGELOG.md": "history stays as it was written",
}


# -- prose: comments, docstrings, messages, pages -------------------------------------------------------------------
def prose(source: Source) -> list[tuple[int, str]]:
    """Line number and text of everything in the file that a person reads: comments, docstrings, messages, pages."""
    if source.is_python:
        return _python_prose(source)
    if source.path.endswith((".md", ".yaml")):
        return [*source.lines()]
    if source.path.startswith("tests/") and source.path.endswith(".txt"):
        return [(number, line) for number, line in source.lines() if line.startswith("#")]
    return []


# A string or a comment, whichever begins first: tokenize says the same, and takes ten times as long.
_STRING_OR_COMMENT = re.compile(
    r'"""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|(#[^\n]*)', re.DOTALL
)


@functools.lru_cache(maxsize=4096)
def _comments(text: str) -> list[tuple[int, str]]:
    found = []
    line, at = 1, 0
    for each in _STRING_OR_COMMENT.finditer(text):
        if each[1] is not None:
            line, at = line + text.count("\n", at, each.start()), each.start()
            found.append((line, each[1]))
    return found


@functools.lru_cache(maxsize=4096)
def _python_prose(source: Source) -> list[tuple[int, str]]:
    found = list(_comments(source.text))
    for node in source.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            found += [(node.lineno + at, line) for at, line in enumerate(node.value.splitlines())]
    return sorted(found)


def comments_and_docstrings(source: Source) -> Iterator[tuple[int, str]]:
    """As `prose`, without other strings; lines that belong together are one text."""
    if not source.is_python:
        return
    yield from _comments(source.text)
    for node in source.nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


# -- references -----------------------------------------------------------------------------------------------------
# Each pattern is written so that it does not match itself.
_DANGLING = {
    r"\bDESIG[N](?:\.md)?\b(?! *=)": "cite a heading of docs/promises.md",
    r"\bpitfalls? \d+(?!\d*(?:\]\(\S+\))?: *[a-z0-9])": "say in words what it says: pitfall 62: ack before fsync",
    r"\bplanted bugs? \d+(?!\d*[:,] *[a-z0-9])": "say in words what it does: planted bug 4: term and vote reset",
    r"\bpromise \d+(?!\d*: *[a-z]|\]\()": "cite a heading of docs/promises.md by its words",
    r"\bissue \d+": "say in words what it was about; issues are not in the repository",
}
_SEED = r"\bseeds? \d{2,}"
_CITES = re.compile(r"DESIG[N]|(?:[Pp]itfalls?|[Bb]ugs?|[Pp]romises?|[Ii]ssues?|[Ss]eeds?)\s")


def references_are_words(files: Iterable[Source]) -> Iterator[Finding]:
    """No text cites the design notes, a bare pitfall, a planted bug, a promise, an issue or a seed by number alone."""
    for source in files:
        if source.path in NOT_COUNTED or source.path == "docs/pitfalls.md" or not _CITES.search(source.text):
            continue
        texts = [(1, source.text)] if source.path.endswith((".md", ".txt", ".yaml")) else []
        texts += comments_and_docstrings(source)
        for line, text in texts:
            flat = re.sub(r"\s*\n[ #]*", " ", text)
            for pattern, fix in _DANGLING.items():
                for found in re.finditer(pattern, flat, re.IGNORECASE if "plant" in pattern else 0):
                    yield Finding(source.path, line, f"leads nowhere: {found[0]}", fix)
            if source.is_python and (seed := re.search(_SEED, flat)):
                fix = "name the test that repeats it; a seed replays only on the commit of its day"
                yield Finding(source.path, line, f"leads nowhere: {seed[0]}", fix)


def promises_are_cited_by_heading(files: Iterable[Source]) -> Iterator[Finding]:
    """Words after `promises.md:` begin a heading of docs/promises.md."""
    files = list(files)
    page = next((source.text for source in files if source.path == PROMISES), None)
    if page is None:
        page = (ROOT / PROMISES).read_text(encoding="utf-8")
    headings = [_plain(found[1]) for found in re.finditer(r"^(?:#+ (?:\d+\. )?|\*\*)([^*\n]+)", page, re.MULTILINE)]
    for source in files:
        if not source.is_python or source.path in NOT_COUNTED:
            continue
        flat = re.sub(r"\s*\n[ #]*", " ", source.text)
        for found in re.finditer(r"promises\.md: ([^).;\"]+)", flat):
            words = _plain(found[1])
            if not any(heading.startswith(words) for heading in headings):
                yield Finding(
                    source.path, 1, f"no heading of {PROMISES}: {found[1]!r}", f"cite a heading of {PROMISES}"
                )


def links_lead_somewhere(files: Iterable[Source]) -> Iterator[Finding]:
    """Every relative link of a page names a file of the repository, and its anchor a heading of that page."""
    files = list(files)
    pages = {source.path: source.text for source in files if source.path.endswith(".md")}
    for path, text in pages.items():
        folder = path.rpartition("/")[0]
        for number, line in enumerate(text.splitlines(), start=1):
            for target in re.findall(r"\]\(([^)\s]+)\)", line):
                if "://" in target:
                    continue
                name, _, anchor = target.partition("#")
                to = _joined(folder, name) if name else path
                if not (to in pages or (ROOT / to).exists()):
                    yield Finding(path, number, f"no such file: {target}", "name a file of the repository")
                elif anchor and anchor not in anchors(pages.get(to, "")):
                    yield Finding(path, number, f"no such heading: {target}", f"name a heading of {to}")


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as the usual renderers of Markdown make them."""
    found = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in found}


def _joined(folder: str, name: str) -> str:
    parts = folder.split("/") if folder else []
    for part in name.rstrip("/").split("/"):
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9 ]", "", text.lower()).strip()


# -- riddle words ---------------------------------------------------------------------------------------------------
def riddle_words() -> list[str]:
    """The words that docs/glossary.md asks not to write."""
    words: list[str] = []
    for line in (ROOT / GLOSSARY).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[2] not in {"", "do not write", "---"}:
            words += cells[2].split(", ")
        if len(cells) == 2 and cells[0] not in {"instead of", "---"}:
            words += cells[0].split(", ")
    return words


@functools.cache
def _pattern() -> re.Pattern[str]:
    words = "|".join(map(re.escape, riddle_words()))
    return re.compile(rf"(?<![\w`\"'])(?!(?-i:NOBODY))(?:{words})(?:s|ed|ing)?(?![\w`\"'=(])", re.IGNORECASE)


def riddles(files: Iterable[Source]) -> Counter[str]:
    """How often each folder at the top of the repository uses a riddle word in its prose."""
    pattern = _pattern()
    found: Counter[str] = Counter()
    for source in files:
        if source.path not in NOT_COUNTED and pattern.search(source.text):
            found[source.top] += sum(len(pattern.findall(text)) for _, text in prose(source))
    return found


def no_riddles(files: Iterable[Source]) -> Iterator[Finding]:
    """No comment, docstring, message or page has a riddle word."""
    for source in files:
        if source.path in NOT_COUNTED or not riddles([source]):
            continue
        for number, text in prose(source):
            if _pattern().search(text):
                yield Finding(source.path, number, f"riddle word: {text.strip()}", f"write the words of {GLOSSARY}")


RULES = (references_are_words, promises_are_cited_by_heading, links_lead_somewhere, no_riddles)
