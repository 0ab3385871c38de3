"""Defines the house rules as functions: each takes the project's files and yields each breach, its place, and the fix.

tests/house/test_rules.py runs them. Exceptions are tables here, each with its reason: add a row, do not weaken a rule.
"""

import ast
import fnmatch
import functools
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("raft", "statemachine", "cluster", "chaos", "spark_export")

TOP_LEVEL = {
    *PACKAGES,
    *("__init__.py", "py.typed"),
    *("tests", "bench", "docs", ".ci"),
    *("pyproject.toml", "requirements.lock", "Makefile", ".gitignore"),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"),
    *("Dockerfile", ".dockerignore", "compose.yaml"),
}

# pattern -> why this file of cluster/ opens files although that is the work of cluster/disk/disk.py
MAY_OPEN_FILES = {
    "cluster/disk/*.py": "the disk: all other files ask it",
    "cluster/files/*.py": "the files of one data folder: the disk and the tools for stopped nodes ask them",
    "cluster/offline/*.py": "a user's tool: reads the files of a stopped node",
    "cluster/runtime/log_file.py": "the node's own log: no data, and never waited for",
    "cluster/config/cluster_file.py": "reads the settings file and the cluster file",
    "cluster/console/files.py": "the pages of the console, which lie beside it",
    "cluster/drawing/page.py": "the templates of pages, which stand beside it and beside the callers",
    "cluster/node/formatting.py": "writes the cluster file",
    "cluster/node/local_cluster.py": "makes the settings and log files of the processes that it starts",
    "cluster/runtime/file_errors.py": "writes a file for a user, whole or not at all",
    "cluster/cli/*.py": "a user's tool: reads what the user names",
    "cluster/security/*.py": "certificates: read at the start and after a renewal, written for a user",
    "cluster/demo/*.py": "a user's tool: writes its input, reads its output",
    "cluster/importer/*.py": "a user's tool: reads the input, keeps its position beside it",
    "cluster/sinks/*.py": "a user's tool: reads the settings that the user names, keeps rejected records beside them",
}

# pattern -> why this file of cluster/ reads time although that is the work of cluster/runtime/clock.py
MAY_READ_TIME = {
    "cluster/runtime/clock.py": "the file that reads time",
    "cluster/node/local_cluster.py": "waits for processes",
    "cluster/cli/*.py": "a user's tool: shows rates and ages",
    "cluster/demo/*.py": "a user's tool: shows how long things took",
    "cluster/importer/*.py": "a user's tool: shows a rate",
}


# path -> why a function of this file may decode into a type although decoders are made at import
MAY_DECODE_LATE = {
    "cluster/client/answers.py": "`plain`, which makes a decoder: the rule forbids its calls in functions too",
    "cluster/sinks/settings.py": "reads sinks.toml before the thread of a sink starts",
    "cluster/config/settings.py": "converts single settings: numbers, texts and lists of texts, never a Struct",
}


@dataclass(frozen=True, slots=True)
class Source:
    """One file of the project: its path from the top, with slashes, and its text."""

    path: str
    text: str

    @property
    def is_python(self) -> bool:
        return self.path.endswith(".py")

    @property
    def top(self) -> str:
        return self.path.partition("/")[0]

    @property
    def tree(self) -> ast.Module:
        return _parse(self.text)

    @property
    def nodes(self) -> list[ast.AST]:
        """Every node of the tree."""
        return _nodes(self.text)

    def lines(self) -> Iterator[tuple[int, str]]:
        return enumerate(self.text.splitlines(), start=1)


@dataclass(frozen=True, slots=True)
class Finding:
    """One place that breaks a rule."""

    path: str
    line: int
    what: str
    mend: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}; fix: {self.mend}"


Rule = Callable[[Iterable[Source]], Iterator[Finding]]


@functools.lru_cache(maxsize=4096)  # more than there are files: each rule walks all of them, and would find none kept
def _parse(text: str) -> ast.Module:
    return ast.parse(text)


@functools.lru_cache(maxsize=4096)
def _nodes(text: str) -> list[ast.AST]:
    return list(ast.walk(_parse(text)))


def project_files() -> list[Source]:
    """What git tracks, and what it would if it were added; binary files are left out."""
    sources = []
    for path in sorted(_tracked() if (ROOT / ".git").exists() else unignored(ROOT)):
        try:
            sources.append(Source(path, (ROOT / path).read_text(encoding="utf-8")))
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue  # binary; deleted but not yet committed; a link to a folder
    return sources


def _tracked() -> set[str]:
    told = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout.decode()
    return set(told.split("\0")) - {""}


def unignored(folder: Path) -> set[str]:
    """The same of a folder without git, as a source archive is: every file that no line of `.gitignore` names."""
    lines = (folder / ".gitignore").read_text(encoding="utf-8").splitlines()
    patterns = [line.rstrip("/") for line in lines if line and not line.startswith("#")]

    def is_ignored(path: str) -> bool:
        name = path.rpartition("/")[2]
        return any(fnmatch.fnmatchcase(f"/{path}" if "/" in each else name, each) for each in patterns)

    found: set[str] = set()
    for top, folders, files in os.walk(folder):
        at = Path(top).relative_to(folder).as_posix()
        prefix = "" if at == "." else f"{at}/"
        folders[:] = [each for each in folders if not is_ignored(prefix + each)]
        found |= {prefix + each for each in files if not is_ignored(prefix + each)}
    return found


def first_sentence(source: Source) -> str | None:
    """The first line of the module's docstring, or None without a docstring."""
    docstring = ast.get_docstring(source.tree)
    return docstring.splitlines()[0].strip() if docstring else None


def modules_open_with_a_sentence(files: Iterable[Source]) -> Iterator[Finding]:
    """Every module opens with a docstring whose first line is one sentence: its single responsibility."""
    for source in files:
        if not source.is_python:
            continue
        line = first_sentence(source)
        if line is None:
            mend = "open with one sentence that says what the file is for"
            yield Finding(source.path, 1, "no docstring", mend)
        elif not line.endswith("."):
            mend = "put one whole sentence, with its full stop, on the first line"
            yield Finding(source.path, 1, f"the docstring's first line is no sentence: {line!r}", mend)
        elif re.search(r"[.!?] +[A-Z]", line):
            what = "the docstring's first line is more than one sentence"
            yield Finding(source.path, 1, what, "keep the first on it, move the rest below")


def formatter_wins(files: Iterable[Source]) -> Iterator[Finding]:
    """No line keeps the formatter off: a file that looks long is divided, not packed."""
    for source in files:
        for number, line in source.lines() if source.is_python else ():
            if re.search(r"# fmt: (?:sk[i]p|o[f]f)", line):
                yield Finding(source.path, number, "the formatter is kept off", "take the comment away, and `make fix`")


# Written so that this file does not match itself.
_HOST = re.compile(
    r"py[p]i\.org|python[h]osted\.org|proxy\.golang\.[o]rg|repo1?\.maven\.(?:apache\.)?[o]rg"
    r"|https?://\S+/(?:s[i]mple\b|artifactory|nexus)|--(?:extra-)?index-ur[l][ =]\S|--find-link[s][ =]\S"
)
_MACHINE_PATH = re.compile(r"(?<![\w.~$}-])/(?:work|root|home)/")


def no_registry_is_named(files: Iterable[Source]) -> Iterator[Finding]:
    """No file names the host or the index URL of a package registry: each machine has its own."""
    for source in files:
        for number, line in source.lines():
            if found := _HOST.search(line):
                mend = "leave it to the machine's own settings (`make lock` writes locks without a host)"
                yield Finding(source.path, number, f"names a package registry: {found[0]}", mend)


def no_path_of_a_machine(files: Iterable[Source]) -> Iterator[Finding]:
    """No file holds an absolute path that exists only on its author's machine."""
    for source in files:
        for number, line in source.lines():
            if found := _MACHINE_PATH.search(line):
                yield Finding(source.path, number, f"a path of one machine: {found[0]}", "make it relative")


def tests_are_no_package(files: Iterable[Source]) -> Iterator[Finding]:
    """No folder of tests is a package: pytest would name its tests after the folder of the checkout, which is one."""
    for source in files:
        if source.top == "tests" and source.path.endswith("/__init__.py"):
            yield Finding(source.path, 1, "a package of tests", "take the file out: imports say `tests.…` without it")


def top_level_is_known(files: Iterable[Source]) -> Iterator[Finding]:
    """Nothing lies at the top but what the layout names."""
    for top in sorted({source.top for source in files} - TOP_LEVEL):
        mend = "move it into a package, tests/, bench/, docs/ or .ci/"
        yield Finding(top, 1, "not one of the names at the top", mend)


def tests_do_not_sleep(files: Iterable[Source]) -> Iterator[Finding]:
    """No test sleeps to wait for something; `sleep(0)`, which only lets others run, is no wait."""
    for source in files:
        if not source.is_python or source.top != "tests" or source.path == "tests/support.py":
            continue
        for node in source.nodes:
            if isinstance(node, ast.Call) and _dotted(node.func) in {"time.sleep", "asyncio.sleep", "sleep"}:
                if node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0:
                    continue
                mend = "wait for the thing itself: tests.support.wait_until or wait_until_async"
                yield Finding(source.path, node.lineno, "a test sleeps", mend)


def tests_say_what_they_prove(files: Iterable[Source]) -> Iterator[Finding]:
    """Every test function has a docstring."""
    for source in files:
        if not source.is_python or source.top != "tests" or not Path(source.path).name.startswith("test_"):
            continue
        for node in source.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                if not ast.get_docstring(node):
                    yield Finding(source.path, node.lineno, f"{node.name} has no docstring", "say what it proves")


def pure_packages_are_deterministic(files: Iterable[Source]) -> Iterator[Finding]:
    """raft and statemachine have no floats, and no set or hash whose order could leak."""
    for source in files:
        if not source.is_python or source.top not in {"raft", "statemachine"}:
            continue
        harmless = _harmless_sets(source.tree)
        for node in source.nodes:
            match node:
                case ast.Constant(value=float() | complex()) | ast.Name(id="float"):
                    what, mend = "a float", "count in whole milliseconds, bytes or thousandths"
                case ast.BinOp(op=ast.Div()) | ast.AugAssign(op=ast.Div()):
                    what, mend = "`/` makes a float", "use `//`"
                case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name(id="set" | "frozenset")):
                    if id(node) in harmless:
                        continue
                    what = "a set, whose order is not that of the log"
                    mend = "use a dict or a sorted tuple (`x in {…}`, sorted(set(…)), len(set(…)) are fine)"
                case ast.Call(func=ast.Name(id="hash" | "id")):
                    what, mend = "a hash that differs between processes", "use xxhash or a CRC"
                case _:
                    continue
            yield Finding(source.path, node.lineno, what, mend)


def _harmless_sets(tree: ast.Module) -> set[int]:
    """Sets whose order is never used: right of `in`, within sorted() or len(), constants at the top."""
    harmless: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Compare(ops=ops, comparators=right):
                pairs = zip(ops, right, strict=True)
                harmless |= {id(side) for op, side in pairs if isinstance(op, ast.In | ast.NotIn)}
            case ast.Call(func=ast.Name(id="sorted" | "len"), args=[argument, *_]):
                harmless.add(id(argument))
    for statement in tree.body:
        match statement:
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                harmless.add(id(value))
                if isinstance(value, ast.Call):  # frozenset({…})
                    harmless |= {id(argument) for argument in value.args}
    return harmless


_FILE_METHODS = {"read_text", "write_text", "read_bytes", "write_bytes"}
_MODE = re.compile(r"^[rwaxbt+]+$")


def only_disk_opens_files(files: Iterable[Source]) -> Iterator[Finding]:
    """In cluster/, disk.py alone opens files; tools for a user may read what the user names."""
    for source in _of_cluster(files, MAY_OPEN_FILES):
        for node in source.nodes:
            if not isinstance(node, ast.Call):
                continue
            name = _dotted(node.func)
            method = name.rpartition(".")[2]
            mode = node.args[0] if node.args else None
            is_open = name in {"open", "os.open", "os.fdopen", "io.open"} or method in _FILE_METHODS
            if method == "open" and isinstance(mode, ast.Constant) and _MODE.match(str(mode.value)):
                is_open = True
            if is_open:
                mend = "let cluster/disk/disk.py do it, or name the file with the reason in MAY_OPEN_FILES"
                yield Finding(source.path, node.lineno, f"opens a file ({name})", mend)


def only_clock_reads_time(files: Iterable[Source]) -> Iterator[Finding]:
    """In cluster/, clock.py alone reads time, so that time can be tested."""
    for source in _of_cluster(files, MAY_READ_TIME):
        for node in source.nodes:
            match node:
                case ast.Import(names=names) if any(name.name == "time" for name in names):
                    what = "imports time"
                case ast.ImportFrom(module="time"):
                    what = "imports time"
                case ast.Call(func=ast.Attribute(attr="now" | "utcnow" | "today")):
                    what = f"reads time ({_dotted(node.func)})"
                case ast.Call(func=ast.Attribute(attr="time"), args=[]):
                    what = f"reads time ({_dotted(node.func)})"
                case _:
                    continue
            mend = "ask cluster/runtime/clock.py, or name the file with the reason in MAY_READ_TIME"
            yield Finding(source.path, node.lineno, what, mend)


def decoders_are_made_at_import(files: Iterable[Source]) -> Iterator[Finding]:
    """No function decodes into a type: its decoder is made when the module is imported.

    msgspec 0.22 builds its knowledge of a Struct at the first decoder, and other threads see it half-built: a program
    with two threads ends with signal 11 (tests/cluster/client/test_first_use.py). Encoding builds nothing.
    """
    for source in files:
        if not source.is_python or source.top not in PACKAGES or source.path in MAY_DECODE_LATE:
            continue
        inside = {id(node) for function in _functions(source) for node in _below(function)}
        calls = [node for node in source.nodes if isinstance(node, ast.Call)]
        made = {_first(call) for call in calls if id(call) not in inside and _method(call) == "Decoder"}
        for call in calls:
            if id(call) not in inside:
                continue
            match _method(call):
                case "Decoder":
                    is_late = _is_msgspec(call) and bool(call.args or call.keywords)
                case "decode":
                    is_late = any(keyword.arg == "type" for keyword in call.keywords)
                case "convert":
                    is_late = _is_msgspec(call) and ast.dump(call.args[-1]) not in made
                case "plain":
                    is_late = _dotted(call.func) == "answers.plain"
                case _:
                    continue
            if is_late:
                mend = "make the decoder at the top of the module: _decode = msgspec.json.Decoder(Type).decode"
                yield Finding(source.path, call.lineno, f"a function decodes into a type ({_dotted(call.func)})", mend)


def _functions(source: Source) -> Iterator[ast.AST]:
    return (node for node in source.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))


def _below(function: ast.AST) -> Iterator[ast.AST]:
    """What runs when the function is called: not its decorators and defaults."""
    body = function.body if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) else []
    for node in body if isinstance(body, list) else [body]:
        yield from ast.walk(node)


def _method(call: ast.Call) -> str:
    return _dotted(call.func).rpartition(".")[2]


def _first(call: ast.Call) -> str:
    return ast.dump(call.args[0]) if call.args else ""


def _is_msgspec(call: ast.Call) -> bool:
    return _dotted(call.func) in {
        "Decoder",
        "convert",
        "json.Decoder",
        "msgpack.Decoder",
        "msgspec.json.Decoder",
        "msgspec.msgpack.Decoder",
        "msgspec.convert",
        "msgspec.toml.decode",
        "msgspec.yaml.decode",
    }


def _of_cluster(files: Iterable[Source], excepted: Iterable[str]) -> Iterator[Source]:
    for source in files:
        if source.is_python and source.top == "cluster":
            if not any(fnmatch.fnmatchcase(source.path, pattern) for pattern in excepted):
                yield source


def _dotted(node: ast.expr) -> str:
    """`a.b.c` as text; any other expression is `?`."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{_dotted(value)}.{attr}"
        case _:
            return "?"


RULES: tuple[Rule, ...] = (
    modules_open_with_a_sentence,
    formatter_wins,
    no_registry_is_named,
    no_path_of_a_machine,
    tests_are_no_package,
    top_level_is_known,
    tests_do_not_sleep,
    tests_say_what_they_prove,
    pure_packages_are_deterministic,
    only_disk_opens_files,
    only_clock_reads_time,
    decoders_are_made_at_import,
)
