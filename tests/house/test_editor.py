"""`pip install -e .` in any environment, and an editor on a checkout: names work, and pyright finds their uses."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.house.rules import ROOT, project_files
from tests.wheels import run, uv

SERVER = ROOT / ".tools" / "pyright" / "langserver.index.js"


def installed(checkout: Path) -> Path:
    """The Python of a fresh environment with a copy of this tree, installed by `pip install -e` alone.

    The packages that raftlog needs come from this environment. `.pth` files in it are not read again, so it adds no
    other checkout.
    """
    for source in project_files():
        (checkout / source.path).parent.mkdir(parents=True, exist_ok=True)
        (checkout / source.path).write_text(source.text, encoding="utf-8")
    place = checkout.parent / "env"
    run(uv(), "venv", "-q", "--python", sys.executable, str(place))
    (site,) = place.glob("lib/python*/site-packages")
    (site / "needed.pth").write_text(sysconfig.get_paths()["purelib"])
    python = place / "bin" / "python"
    run(uv(), "pip", "install", "-q", "--python", str(python), "--no-deps", "--no-build-isolation", "-e", str(checkout))
    return python


def test_an_editable_install_works_in_a_folder_of_any_name(tmp_path: Path) -> None:
    """The command, `import raftlog` and the module for Spark work from everywhere, from the files of that checkout."""
    python = installed(tmp_path / "some-fork")
    assert "0.1.0" in run(str(python.with_name("raftlog")), "version", cwd=tmp_path)
    places = "import pyspark_raftlog, raftlog; print(raftlog.__file__, pyspark_raftlog.__file__, *raftlog.__path__)"
    printed = run(
        str(python), "-c", f"{places}; from raftlog import SyncClient; import raftlog.raft.quorum", cwd=tmp_path
    )
    assert {Path(place).is_relative_to(tmp_path / "some-fork") for place in printed.split()} == {True}


class Editor:
    """What an editor asks pyright's language server about one checkout."""

    def __init__(self, checkout: Path, python: Path) -> None:
        self._checkout, self._python = checkout, python
        self._asked = 0
        self._server = subprocess.Popen(
            ["node", str(SERVER), "--stdio"], cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._write, self._read = self._server.stdin, self._server.stdout
        folder = {"uri": checkout.as_uri(), "name": checkout.name}
        can = {"workspace": {"configuration": True, "workspaceEdit": {"documentChanges": True}}}
        self._ask("initialize", processId=os.getpid(), workspaceFolders=[folder], capabilities=can)
        self._send(method="initialized", params={})
        while "source files" not in self._receive().get("params", {}).get("message", ""):
            pass  # "Found 1162 source files": until then it answers from the files that are open

    def close(self) -> None:
        """Ends the server."""
        self._server.kill()
        self._server.communicate()

    def definition(self, path: str, line: str, name: str) -> Counter[str]:
        """The files in which that name of that line is defined."""
        return self._files(each["uri"] for each in self._ask("textDocument/definition", **self._at(path, line, name)))

    def references(self, path: str, line: str, name: str) -> Counter[str]:
        """How often each file names it."""
        found = self._ask("textDocument/references", **self._at(path, line, name), context={"includeDeclaration": True})
        return self._files(each["uri"] for each in found)

    def renamed(self, path: str, line: str, name: str) -> Counter[str]:
        """How many places of each file a new name would change."""
        edit = self._ask("textDocument/rename", **self._at(path, line, name), newName="renamed")
        return self._files(each["textDocument"]["uri"] for each in edit["documentChanges"] for _ in each["edits"])

    def _at(self, path: str, line: str, name: str) -> dict[str, Any]:
        """The place of the name in the first line of the file that holds the text `line`."""
        lines = (self._checkout / path).read_text(encoding="utf-8").splitlines()
        number = next(number for number, text in enumerate(lines) if line in text)
        document = {"uri": (self._checkout / path).as_uri()}
        return {"textDocument": document, "position": {"line": number, "character": lines[number].index(name)}}

    def _files(self, uris: Iterable[str]) -> Counter[str]:
        """How often each file of the checkout is named."""
        return Counter(uri.removeprefix(f"{self._checkout.as_uri()}/") for uri in uris)

    def _ask(self, method: str, **params: Any) -> Any:
        """The result of a request."""
        self._asked += 1
        self._send(id=self._asked, method=method, params=params)
        while (answer := self._receive()).get("id") != self._asked or "method" in answer:
            pass
        return answer["result"]

    def _send(self, **message: Any) -> None:
        content = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._write.write(b"Content-Length: %d\r\n\r\n%s" % (len(content), content))
        self._write.flush()

    def _receive(self) -> dict[str, Any]:
        """The next message. What the server asks of its editor is answered first: it wants the settings."""
        length = 0
        while (line := self._read.readline()) != b"\r\n":
            assert line, "the language server ended"
            name, _, value = line.partition(b":")
            length = int(value) if name == b"Content-Length" else length
        message: dict[str, Any] = json.loads(self._read.read(length))
        if "id" in message and "method" in message:
            items = message["params"].get("items", ())
            settings = [{"pythonPath": str(self._python)} if item.get("section") == "python" else {} for item in items]
            self._send(id=message["id"], result=settings)
        return message


@pytest.fixture(scope="module")
def editor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    """An editor with a fresh clone."""
    if not SERVER.exists():
        pytest.skip("no pyright: `.ci/setup pyright` obtains it, with Node.js and npm")
    checkout = tmp_path_factory.mktemp("editor") / "raftlog"  # as `git clone` calls it
    editor = Editor(checkout, installed(checkout))
    yield editor
    editor.close()


def uses(path: str, function: str) -> Counter[str]:
    """How often each file names that function of that module, by the syntax trees of those that import it."""
    found: Counter[str] = Counter()
    for source in (source for source in project_files() if source.is_python):
        imports = [node for node in source.nodes if isinstance(node, ast.ImportFrom)]
        module = f"raftlog.{path.removesuffix('.py').replace('/', '.')}"
        names = [alias.name for node in imports if node.module == module for alias in node.names]
        if source.path == path or function in names:
            found[source.path] = names.count(function) + sum(
                (isinstance(node, ast.Name) and node.id == function)
                or (isinstance(node, ast.FunctionDef) and node.name == function)
                for node in source.nodes
            )
    return found


@pytest.mark.parametrize(
    ("path", "function", "user", "line"),
    [
        ("raft/quorum.py", "outcome", "raft/consensus/election.py", "result = outcome("),
        ("cluster/replica/log/log_reader.py", "compacted", "cluster/http/routes/log.py", "raise compacted("),
    ],
)
def test_an_editor_finds_and_renames_a_function(editor: Editor, path: str, function: str, user: str, line: str) -> None:
    """From a use of it pyright leads to the file of the checkout itself, to every use, and renames all of them."""
    expected = uses(path, function)
    assert len(expected) > 2
    assert editor.definition(user, line, function) == {path: 1}
    assert editor.references(user, line, function) == expected
    assert editor.renamed(user, line, function) == expected
