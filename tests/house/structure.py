"""Counts what makes a tree hard to read: full folders, large classes, import circles, unclear names and words.

`python -m tests.house.structure` counts this tree, `--at COMMIT` another one, and `--against COMMIT` puts the counts of
both side by side. `--details` lists what each row counts. Imports inside functions and imports for types count like
all others.
"""

import argparse
import ast
import io
import subprocess
import sys
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.house import weight, words
from tests.house.imports import imported
from tests.house.rules import PACKAGES, ROOT, Finding, Source, project_files

FOLDER_FILES_MAX = 15
WORD_PACKAGES = ("raft", "statemachine", "cluster")  # where one class name shall mean one thing

Graph = dict[str, set[str]]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a number, and the places that it counts, if it counts places."""

    title: str
    count: int
    places: tuple[str, ...] = ()


def rows(files: Iterable[Source]) -> list[Row]:
    """Every count of one tree, in the order of the table; always the same titles."""
    files = list(files)
    python = [source for source in files if source.is_python]
    product = [source for source in python if source.top in (*PACKAGES, "package", "__init__.py")]
    tests = [source for source in python if source.top == "tests"]
    graph = module_graph(python)
    references = list(words.references_are_words(files))
    riddles = words.riddles(files)
    return [
        _listed(f"folders with more than {FOLDER_FILES_MAX} modules", full_folders(python)),
        Row("modules in the fullest folder", max(modules_by_folder(python).values(), default=0)),
        _listed("import circles of modules", (" <-> ".join(circle) for circle in circles(graph))),
        Row("modules that stand in such a circle", sum(map(len, circles(graph)))),
        _listed("import circles of folders", folder_circles(graph)),
        _listed("class names of raft, statemachine, cluster in several modules", clashing_classes(python)),
        _listed("references: DESIGN section n", (str(each) for each in references if "DESIG" in each.what)),
        _listed("references: pitfall n without words", (str(each) for each in references if "itfall" in each.what)),
        _listed("references: seeds", (str(each) for each in references if "seed" in each.what)),
        _listed("dangling references of all kinds", map(str, references)),
        *(_listed(title, map(str, places)) for title, places in weight.counts(files).items()),
        Row("riddle words", riddles.total(), tuple(f"{top}: {count}" for top, count in sorted(riddles.items()))),
        Row("lines of production", _lines(product)),
        Row("nodes of its syntax trees (no formatter changes them)", _nodes(product)),
        Row("lines of tests", _lines(tests)),
        Row("nodes of their syntax trees", _nodes(tests)),
    ]


def _listed(title: str, places: Iterable[str]) -> Row:
    listed = tuple(places)
    return Row(title, len(listed), listed)


# -- folders and files ----------------------------------------------------------------------------------------------
def modules_by_folder(files: Iterable[Source]) -> dict[str, int]:
    """The number of modules in each folder, `__init__.py` not counted."""
    counts: dict[str, int] = defaultdict(int)
    for source in files:
        folder, _, name = source.path.rpartition("/")
        counts[folder] += name != "__init__.py"
    return counts


def full_folders(files: Iterable[Source]) -> Iterator[str]:
    """Folders with more than FOLDER_FILES_MAX modules."""
    for folder, count in sorted(modules_by_folder(files).items()):
        if count > FOLDER_FILES_MAX:
            yield f"{folder}: {count}"


def _lines(files: Iterable[Source]) -> int:
    return sum(source.text.count("\n") for source in files)


def _nodes(files: Iterable[Source]) -> int:
    return sum(1 for source in files for _ in source.nodes)


# -- imports --------------------------------------------------------------------------------------------------------
def module_graph(files: Iterable[Source]) -> Graph:
    """For each module of the five packages (`cluster/http/gate`), the modules of them that it imports."""
    sources = {_module(source.path): source for source in files if source.top in PACKAGES}
    return {name: set(_imports(source, sources)) - {name} for name, source in sorted(sources.items())}


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__")


def _imports(source: Source, known: dict[str, Source]) -> Iterator[str]:
    for _, name in imported(source):
        parts = name.removeprefix("raftlog.").split(".")
        found = next((each for end in range(len(parts), 0, -1) if (each := "/".join(parts[:end])) in known), None)
        if found is not None and parts[0] in PACKAGES:
            yield found


def circles(graph: Graph) -> list[list[str]]:
    """The groups of nodes that reach each other, each sorted: Tarjan's strongly connected components."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in order:
                visit(target)
            if target in stack:
                low[node] = min(low[node], low[target])
        if low[node] == order[node]:
            start = stack.index(node)
            if len(stack) - start > 1:
                found.append(sorted(stack[start:]))
            del stack[start:]

    for node in graph:
        if node not in order:
            visit(node)
    return sorted(found)


def folder_circles(graph: Graph) -> Iterator[str]:
    """Circles among what lies in one folder (its modules and subfolders), if a subfolder takes part."""
    siblings: dict[str, Graph] = defaultdict(dict)
    folders = {parent for module in graph for parent in _parents(module)}
    for module, targets in graph.items():
        for target in targets:
            ours, theirs = module.split("/"), target.split("/")
            pairs = enumerate(zip(ours, theirs, strict=False))
            at = next((index for index, (one, other) in pairs if one != other), None)
            if at is not None:  # else a package imports a module below it, or the reverse
                here = siblings["/".join(ours[:at])]
                here.setdefault("/".join(ours[: at + 1]), set()).add("/".join(theirs[: at + 1]))
    for _, here in sorted(siblings.items()):
        for circle in circles(here):
            if folders.intersection(circle):
                yield " <-> ".join(circle)


def imports_form_no_circle(files: Iterable[Source]) -> Iterator[Finding]:
    """No modules and no folders of the five packages import each other in a circle, for types and in functions too."""
    graph = module_graph([source for source in files if source.is_python])
    for circle in [*(" <-> ".join(circle) for circle in circles(graph)), *folder_circles(graph)]:
        first = circle.partition(" ")[0]
        path = first if (ROOT / first).is_dir() else f"{first}.py"
        yield Finding(path, 1, f"imports in a circle: {circle}", "let the lower one define a Protocol, or split it")


def _parents(module: str) -> Iterator[str]:
    parts = module.split("/")
    return ("/".join(parts[:end]) for end in range(1, len(parts)))


# -- names ----------------------------------------------------------------------------------------------------------
def clashing_classes(files: Iterable[Source]) -> Iterator[str]:
    """Names of public classes that are defined in more than one module, with the modules."""
    places: dict[str, set[str]] = defaultdict(set)
    for source in files:
        if source.top in WORD_PACKAGES:
            for node in source.nodes:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].add(source.path)
    for name, paths in sorted(places.items()):
        if len(paths) > 1:
            yield f"{name}: {', '.join(sorted(paths))}"


# -- the table ------------------------------------------------------------------------------------------------------
def files_at(commit: str) -> list[Source]:
    """The text files of a commit, as `project_files` lists those of this tree."""
    archive = subprocess.run(["git", "archive", "--format=tar", commit], cwd=ROOT, check=True, capture_output=True)
    found = []
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        for member in tar:
            if (content := tar.extractfile(member)) is not None:
                try:
                    found.append(Source(member.name, content.read().decode()))
                except UnicodeDecodeError:
                    continue
    return found


def table(columns: dict[str, list[Row]], *, details: bool = False) -> str:
    """The counts of one or two trees as a table of Markdown; with `details`, then the places of each row."""
    titles = [row.title for row in next(iter(columns.values()))]
    width = max(map(len, titles))
    lines = [f"| {'':{width}} | " + " | ".join(f"{name:>14}" for name in columns) + " |"]
    lines.append(f"| {'-' * width} | " + " | ".join("-" * 13 + ":" for _ in columns) + " |")
    for each in zip(*columns.values(), strict=True):
        lines += [f"| {each[0].title:{width}} | " + " | ".join(f"{row.count:>14,}" for row in each) + " |"]
    if details:
        for name, tree in columns.items():
            for row in tree:
                lines += [f"\n{name}: {row.title}", *(f"  {place}" for place in row.places)] if row.places else []
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.house.structure", description=__doc__.splitlines()[0])
    parser.add_argument("--at", metavar="COMMIT", help="count this commit; without, this tree with its changes")
    parser.add_argument("--against", metavar="COMMIT", help="a second commit, whose counts stand in the first column")
    parser.add_argument("--details", action="store_true", help="list the places that each row counts")
    asked = parser.parse_args(arguments)
    try:
        columns = {asked.against: rows(files_at(asked.against))} if asked.against else {}
        columns[asked.at or "this tree"] = rows(files_at(asked.at) if asked.at else project_files())
    except subprocess.CalledProcessError as error:
        print(error.stderr.decode().strip() or error, file=sys.stderr)
        return 2
    print(table(columns, details=asked.details))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
