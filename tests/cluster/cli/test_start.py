"""How the command line starts: a command imports only its own module, and a start that fails ends in words."""

import json
import os
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer
from packaging.requirements import Requirement
from typer.testing import CliRunner

import raftlog
from raftlog.cluster.api import text
from raftlog.cluster.api.text import how_to_install
from raftlog.cluster.cli import main
from raftlog.cluster.cli.commands import MODULES, PANELS, CommandHelp, asked_for, build
from raftlog.cluster.cli.frame.common import Exit
from raftlog.cluster.config.cluster_file import render_cluster_file
from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.node.formatting import new_cluster
from tests.support import HANG_S, RAFTLOG, free_ports

SLOW = (
    "aiohttp",
    "asyncio",
    "pydantic",
    "rich",
    "yaml",
    "prometheus_client",
    "structlog",
    "raftlog.raft.consensus.core",
)
"""What a client's command does without: each takes from 0.01 to 0.2 s to import."""

MEET = """
import os, signal, sys

what, how, *words = sys.argv[1:]


class Meet:
    '''Runs a function at the moment when that package is imported.'''

    def find_spec(self, name, path=None, target=None):
        if name == what and how == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        elif name == what:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
sys.meta_path.insert(0, Meet())
sys.argv = ["raftlog", *words]
from raftlog.cluster.cli.main import main

main()
"""


@pytest.fixture(autouse=True)
def _no_cluster_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands would find one that this user runs, and warn of two."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def started(what: str, how: str, *words: str) -> subprocess.CompletedProcess[str]:
    """`raftlog WORDS` in a process in which the import of that package is interrupted, or finds none."""
    arguments = [sys.executable, "-c", MEET, what, how, *words]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=HANG_S, check=False)


def first_paragraph(text: str | None) -> str:
    """The part of a help text that a list of commands shows."""
    return " ".join((text or "").strip().split("\n\n")[0].split())


@pytest.mark.parametrize("module", MODULES)
def test_the_list_of_commands_equals_the_modules_commands(module: str) -> None:
    """Names, kinds, order and help in the list are those of the commands themselves; a group may leave its help to the
    list."""
    app = typer.Typer()
    listed = MODULES[module]
    helps = {entry.name: entry.help for entry in listed}
    import_module(module).register(app)
    commands = [
        CommandHelp(each.name or "", first_paragraph(each.help or getattr(each.callback, "__doc__", "")))
        for each in app.registered_commands
    ]
    groups = [
        CommandHelp(
            each.name or "", first_paragraph(each.typer_instance.info.help) or helps[each.name or ""], is_group=True
        )
        for each in app.registered_groups
        if each.typer_instance is not None
    ]
    assert [entry for entry in listed if not entry.is_group] == commands
    assert [entry for entry in listed if entry.is_group] == groups


def test_help_from_the_list_is_the_help_of_all_modules() -> None:
    """`raftlog --help`, which imports no command, prints the same bytes as with every command imported."""
    listed, whole = (CliRunner().invoke(build(name), ["--help"], env={"COLUMNS": "100"}) for name in ("", None))
    assert listed.exit_code == whole.exit_code == 0
    assert "chaos" in listed.stdout
    assert listed.stdout == whole.stdout


def test_help_shows_every_command_in_one_panel_and_the_first_steps_on_top() -> None:
    """A new user finds the first six commands without reading forty."""
    listed = sorted(entry.name for entries in MODULES.values() for entry in entries)
    assert sorted(name for names in PANELS.values() for name in names) == listed
    shown = CliRunner().invoke(build(""), ["--help"], env={"COLUMNS": "100"}).stdout
    places = [shown.index(f" {panel} ─") for panel in PANELS]
    assert places == sorted(places)
    words = [line.split()[1] for line in shown.splitlines() if line.startswith("│ ") and line[2] not in " -"]
    assert words == [name for names in PANELS.values() for name in names]


def test_an_unknown_command_is_answered_from_the_list() -> None:
    """A typing error is named together with the nearest command, of whichever module."""
    shown = CliRunner().invoke(build("exprot"), ["exprot"])
    assert shown.exit_code == Exit.USAGE
    assert "Did you mean 'export'" in shown.stderr


@pytest.mark.parametrize(
    ("words", "environment", "name"),
    [
        (["get", "a"], {}, "get"),
        (["--version"], {}, ""),
        ([], {}, ""),
        ([], {"_RAFTLOG_COMPLETE": "complete_bash", "COMP_WORDS": "raftlog get --", "COMP_CWORD": "2"}, "get"),
        ([], {"_RAFTLOG_COMPLETE": "complete_bash", "COMP_WORDS": "raftlog ", "COMP_CWORD": "1"}, ""),
        ([], {"_RAFTLOG_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "raftlog members add "}, "members"),
    ],
)
def test_only_the_requested_command_is_imported(words: list[str], environment: dict[str, str], name: str) -> None:
    """It is the first word; of a shell that completes, the first word of the line so far."""
    assert asked_for(words, environment) == name


@pytest.mark.parametrize("words", [("get", "a"), ("put", "a", "1"), ("append", "x"), ("members", "list")])
def test_a_client_command_imports_no_slow_package(words: tuple[str, ...]) -> None:
    """The command runs (to the error that no node answers) without any of the packages that take long to import."""
    script = (
        "import sys, atexit; from raftlog.cluster.cli.main import main; sys.argv = ['raftlog', *sys.argv[1:]];"
        f"atexit.register(lambda: print('imported:', [name for name in {SLOW!r} if name in sys.modules])); main()"
    )
    arguments = [sys.executable, "-c", script, *words, "-e", "http://127.0.0.1:1", "--deadline", "0.1"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == Exit.UNREACHABLE, done.stderr
    assert done.stdout == "imported: []\n"


def test_completion_of_names_imports_no_command() -> None:
    """The names come from the list: in bash, one a line."""
    script = (
        "import sys, atexit; from raftlog.cluster.cli.main import main;"
        "ours = lambda: [name for name in sys.modules if name.startswith('raftlog.cluster.')];"
        "atexit.register(lambda: print('imported:', ours()));"
        "main()"
    )
    environment = {"_RAFTLOG_COMPLETE": "complete_bash", "COMP_WORDS": "raftlog c", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
        env={**environment, "PYTHONPATH": str(Path(raftlog.__file__).parent.parent)},
    )
    assert done.stdout.split("imported: ") == [
        "compact\nconsumers\ncreate\ncert\nchaos\n",
        "['raftlog.cluster.cli', 'raftlog.cluster.cli.main', 'raftlog.cluster.cli.commands']\n",
    ]


@pytest.mark.parametrize(
    "package", ["typer", "msgspec", "raftlog.cluster.client.blocking.client", "raftlog.cluster.cli.kv"]
)
def test_ctrl_c_while_modules_are_imported_ends_without_a_traceback(package: str) -> None:
    """SIGINT at the import of that package: exit code 130, and nothing on standard error."""
    done = started(package, "interrupt", "get", "a")
    assert (done.returncode, done.stderr) == (Exit.INTERRUPTED, "")
    assert int(Exit.INTERRUPTED) == main.INTERRUPTED


@pytest.mark.parametrize(
    ("package", "words", "extra"),
    [
        ("toxiproxy", ["chaos", "list"], "chaos"),
        ("toxiproxy", ["chaos", "run", "all", "--seconds", "5"], "chaos"),
        ("pyspark", ["export", "--engine", "spark", "--to", "out"], "spark"),
        ("pyarrow", ["analyze", "windows", "out"], "arrow"),
        ("dns", ["status", "--discover", "srv:_raftlog._tcp.example.com"], "dns"),
    ],
)
def test_a_command_without_its_extra_names_the_install_command(
    package: str, words: list[str], extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line with the package and the pip command, and the exit code of a check that could not be made."""
    monkeypatch.chdir(tmp_path)
    done = started(package, "absent", *words)
    assert done.returncode == int(Exit.NOT_CHECKED)
    assert done.returncode == main.NOT_CHECKED
    (line,) = done.stderr.splitlines()
    assert package in line
    assert line.endswith(how_to_install(extra))


def test_a_node_with_traces_and_without_the_extra_names_the_install_command(tmp_path: Path) -> None:
    """One line in its log, the exit code of settings, and no data folder is opened."""
    ports = free_ports(2)
    file = tmp_path / "cluster.toml"
    file.write_text(render_cluster_file(new_cluster(1, peer_ports=ports[:1], http_ports=ports[1:])))
    traced = "trace.endpoint=http://127.0.0.1:4318/v1/traces"
    done = started("opentelemetry", "absent", "node", "--config", str(file), "--node", "1", "--set", traced)
    assert done.returncode == int(NodeExit.SETTINGS)
    (line,) = map(json.loads, done.stderr.splitlines())
    assert line["reason"] == f"trace.endpoint needs the packages of OpenTelemetry: {how_to_install('otel')}"


def test_a_hint_names_what_works_in_this_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a checkout `make setup`. Elsewhere the packages, with this interpreter's pip: no registry has raftlog."""
    assert how_to_install("query") == f"make -C {text._CHECKOUT} setup"
    monkeypatch.setattr(text, "_CHECKOUT", tmp_path)
    monkeypatch.setattr(sys, "executable", "/my venv/bin/python")
    command, _, packages = how_to_install("arrow", "query").partition(" -m pip install ")
    assert command == "'/my venv/bin/python'"
    named = shlex.split(packages)
    assert [Requirement(each).name for each in named] == ["duckdb", "numpy", "pyarrow"]
    for extra in {*main.EXTRAS.values(), "delta", "jwt"}:
        assert not how_to_install(extra).endswith("install "), f"the extra {extra} of pyproject.toml has other markers"


@pytest.mark.parametrize("words", [["--help"], ["import", "--help"], ["chaos", "list"], ["version"]])
def test_output_that_cannot_be_written_is_one_line_and_a_closed_pipe_is_no_error(words: list[str]) -> None:
    """Also where rich prints it. Guard: help and lists ended with a stack trace on a full disk, and with 1 in
    `| head`."""
    command = [*RAFTLOG, *words]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=HANG_S, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "No space left on device; free disk space" in done.stderr
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=HANG_S, check=False)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_name_that_is_not_utf_8_and_a_path_are_explained(tmp_path: Path) -> None:
    """The message says which word it is, and what to do."""
    words: list[tuple[list[str | bytes], int, str]] = [
        (["role", "set", b"k\xff", "read on log", "-e", "http://127.0.0.1:1"], 2, r"k\xff is not UTF-8: names are"),
        (["import", "nodir/x", "--dry-run"], 1, "nodir/x: No such file or directory; the folder nodir is not there"),
        (["import", "x", "--dry-run"], 1, "x: No such file or directory; check the path"),
        (["txn", "x", "-e", "http://127.0.0.1:1"], 2, "raftlog txn - < FILE"),
        (["format", os.devnull], 2, "name a cluster file, which `raftlog create` makes"),
    ]
    for given, code, says in words:
        done = subprocess.run([*RAFTLOG, *given], capture_output=True, cwd=tmp_path, timeout=HANG_S, check=False)
        assert (done.returncode, says in done.stderr.decode()) == (code, True), done.stderr


def test_a_package_that_no_extra_brings_is_not_explained_away() -> None:
    """The traceback stays where an installation lacks a package that every command needs."""
    assert "Traceback" in started("msgspec", "absent", "get", "a").stderr
