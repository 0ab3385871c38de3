"""Checks that the modules and files that texts name exist: dotted paths, slashed paths, names from before a move.

tests/house/test_rules.py runs the rule. Readers follow these names.
"""

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from typing import Final

from tests.house.rules import PACKAGES, Finding, Source, project_files
from tests.house.words import comments_and_docstrings, prose

# path -> why its names stay as they are
NOT_CHECKED: Final = {
    "CHANGELOG.md": "history stays as it was written",
}
_FOLDERS: Final = "|".join((*PACKAGES, "tests", "bench", "docs", "package"))
_DOTTED: Final = re.compile(rf"`raftlog\.((?:{'|'.join(PACKAGES)})(?:\.\w+)*)")
_SLASHED: Final = re.compile(
    rf"(?<![\w/.-])(?<!openraft )((?:{_FOLDERS})/[a-z_\d./-]+\.(?:py|md|yaml|json|jsonl|txt|c|html))\b(?!\*)"
)
_ROOM: Final = re.compile(r"`([a-z_]+)/([a-z_\d]+)`")
_FILE: Final = re.compile(r"`(\w+\.py)`")
_MOVED: Final = re.compile(r"`((?:node|http|disk|client|cli|fast|peer)_[a-z_]+)(?:\.[A-Za-z_]+)?`")


@functools.lru_cache(maxsize=1)
def _project() -> dict[str, str]:
    return {source.path: source.text for source in project_files()}


@functools.lru_cache(maxsize=1)
def _paths() -> str:
    return "".join(f"/{path}\n" for path in _project())


@functools.lru_cache(maxsize=1)
def _rooms() -> frozenset[str]:
    """The names of all folders of the packages."""
    paths = (path.split("/") for path in _project() if path.startswith(PACKAGES))
    return frozenset(folder for path in paths for folder in path[:-1])


def _module(parts: list[str]) -> tuple[str, list[str]] | None:
    """The file of the longest prefix of a dotted path that is a module or package, and the names after it."""
    files = _project()
    for length in range(len(parts), 0, -1):
        stem = "/".join(parts[:length])
        for path in (f"{stem}.py", f"{stem}/__init__.py"):
            if path in files:
                return path, parts[length:]
    return None


def _has(parts: list[str]) -> bool:
    found = _module(parts)
    if found is None:
        return False
    path, names = found
    if path.endswith("/__init__.py") and names and not re.search(rf"\b{names[0]}\b", _project()[path]):
        return False
    return all(re.search(rf"\b{name}\b", _project()[path]) for name in names[:1])


@functools.lru_cache(maxsize=1)
def _words_of_code() -> frozenset[str]:
    """Names of modules, variables, attributes, functions, keywords, and strings that are one word; words of YAML."""
    words: set[str] = set()
    for path, text in _project().items():
        if path.endswith((".yaml", ".toml")):
            words.update(re.findall(r"\w+", text))
        if not path.endswith(".py"):
            continue
        words.add(path.rpartition("/")[2].removesuffix(".py"))
        for node in Source(path, text).nodes:
            for field in ("id", "attr", "arg", "name"):
                if isinstance(word := getattr(node, field, None), str):
                    words.add(word)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
                words.update(re.findall(r"\w+", node.value))
    return frozenset(words)


def names_lead_somewhere(files: Iterable[Source]) -> Iterator[Finding]:
    """Each module, file or old module name in a text is one of the repository."""
    known = _project()
    stems = {path.rpartition("/")[2] for path in known}
    for source in files:
        if source.path in NOT_CHECKED or not source.path.endswith((".py", ".md")):
            continue
        is_test = source.is_python and source.top == "tests"  # its strings are examples
        for line, text in comments_and_docstrings(source) if is_test else prose(source):
            for found in _DOTTED.finditer(text):
                if not _has(found[1].split(".")):
                    yield Finding(source.path, line, f"no such module: {found[1]}", "name the module of today")
            for found in _SLASHED.finditer(text):
                if found[1] not in known:
                    yield Finding(source.path, line, f"no such file: {found[1]}", "name the file of today")
            for found in _ROOM.finditer(text):
                if found[1] in _rooms() and not any(
                    f"/{found[1]}/{found[2]}{end}" in _paths() for end in (".py\n", "/")
                ):
                    yield Finding(source.path, line, f"no such module: {found[0]}", "name the module of today")
            for found in _FILE.finditer(text):
                if found[1] not in stems:
                    yield Finding(source.path, line, f"no file has this name: {found[1]}", "name the file of today")
            for found in _MOVED.finditer(text):
                if found[1] not in _words_of_code():
                    yield Finding(source.path, line, f"no such module: {found[1]}", "name the module of today")


RULES = (names_lead_somewhere,)
