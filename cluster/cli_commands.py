"""Lists every command with its module and its help, and builds the command line from them.

Only the module of the command that was asked for is imported. For `raftlog --help`, for the completion of names and for
a name with a typing error, this table is enough. Importing every module takes ten times as long as most commands.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Final, NamedTuple

import typer

HELP: Final = """raftlog: a replicated log, with a key-value store on it.

Start a cluster with [bold]raftlog up[/bold]; in another terminal try [bold]raftlog put hello world[/bold]."""


class Entry(NamedTuple):
    """A command, or a group of commands: its name, and the first paragraph of its help."""

    name: str
    help: str
    is_group: bool = False


MODULES: Final[Mapping[str, tuple[Entry, ...]]] = {
    "cluster.cli_kv": (
        Entry("put", "Write one key."),
        Entry("get", "Read one key. Exit code 3 if it is not there. With -o raw: the value's bytes and nothing else."),
        Entry("del", "Delete one key or many; `deleted` says how many there were. Exit code 3 if there was none."),
        Entry("range", "List keys and values in order, all as of one moment."),
        Entry(
            "txn",
            "Compare, then carry out one of two branches, at once. Both branches exit with 0; `succeeded` says which "
            "ran.",
        ),
        Entry("watch", "Print changes as they happen, until Ctrl-C. Goes on by itself when a node is lost."),
        Entry("compact", "Let go of the history of keys below a revision."),
    ),
    "cluster.cli_log": (
        Entry("append", "Append records: all of them, one after the other, or none."),
        Entry(
            "import",
            "Append the lines of a file, exactly once and in order: when it is killed, start it again in the same way.",
        ),
        Entry("log", "Print the log in order. With -o raw: the values, one a line.", is_group=True),
    ),
    "cluster.cli_admin": (
        Entry(
            "status",
            "Show who leads, and of every node term, commit, match, lag in entries and seconds, and last contact.",
        ),
        Entry("digest", "Show the digest of the state, by which replicas and exports are compared."),
        Entry("session", "Sessions and receipts: what became of a write?", is_group=True),
        Entry("settings", "The settings of a node.", is_group=True),
    ),
    "cluster.cli_consumers": (Entry("consumers", "Consumer groups: who has read the log up to where?", is_group=True),),
    "cluster.cli_members": (
        Entry("members", "Who belongs to the cluster, and changing that.", is_group=True),
        Entry("leader", "Who leads.", is_group=True),
    ),
    "cluster.cli_local": (
        Entry("up", "Run a cluster on this machine until Ctrl-C, and show how it is."),
        Entry("node", "Run one node until SIGTERM or Ctrl-C. Logs to standard error."),
        Entry("format", "Make the data folders that a cluster file names, or that of the new node of a join file."),
    ),
    "cluster.cli_disk": (
        Entry("disk", "The files of a stopped node: are they intact, what is in them?", is_group=True),
    ),
    "cluster.cli_backup": (
        Entry("backup", "Save the whole state of a running cluster, as of one index, into one checked file."),
        Entry("restore", "Make the data folders of a new cluster from a backup; then start its nodes."),
        Entry("recover", "Make a new cluster from what is left when a majority of the old one is lost for good."),
    ),
    "cluster.cli_explain": (
        Entry("explain", "Say in words why there is no leader or no progress, or what became of a record."),
    ),
    "cluster.cli_demo": (
        Entry(
            "demo",
            "Show the whole job: import, a killed leader, the table, an export through Spark, and the proof of it all.",
        ),
    ),
    # Packages above this one. They are named as text, so that no import points upwards.
    "chaos.commands": (
        Entry("chaos", "Breaks clusters on purpose, and judges what their clients saw.", is_group=True),
    ),
    "spark_export.commands": (
        Entry(
            "verify",
            "Prove that an export is what the cluster committed: from its files and the cluster's digests alone.",
        ),
        Entry(
            "export",
            "Export the log to Parquet files or a Delta table, with a manifest that `raftlog verify` proves.",
            is_group=True,
        ),
        Entry("analyze", "Answers questions about an export, or a running cluster, with Spark.", is_group=True),
    ),
    "chaos.sim.commands": (
        Entry(
            "sim",
            "Run whole clusters in one process, under a seeded clock, network, disks and faults, with everything "
            "checked.",
        ),
    ),
}
"""Each module has a function `register(app)` that adds these commands, in this order."""


def asked_for(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """The command that is asked for, or whose options the shell wants to complete; "" for none."""
    if "_RAFTLOG_COMPLETE" in environment:
        line = environment.get("COMP_WORDS") or environment.get("_TYPER_COMPLETE_ARGS", "")
        arguments = line.split()[1:]
    return next((word for word in arguments if not word.startswith("-")), "")


def build(name: str | None = None) -> typer.Typer:
    """The command line. With the name of a command it has that one; with any other name it lists all commands, and none
    can be run; without a name it has them all."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"], "obj": _find_endpoints},
        help=HELP,
    )
    app.callback()(_main)
    of = {entry.name: module for module, entries in MODULES.items() for entry in entries}
    if name is None or name in of:
        for module in MODULES if name is None else [of[name]]:
            register: Callable[[typer.Typer], None] = import_module(module).register
            register(app)
        if name is not None:  # typer looks at every parameter of every command that it has
            app.registered_commands = [each for each in app.registered_commands if each.name == name]
            app.registered_groups = [each for each in app.registered_groups if each.name == name]
    else:
        for entry in itertools.chain.from_iterable(MODULES.values()):
            _list(app, entry)
    return app


def _list(app: typer.Typer, entry: Entry) -> None:
    """Adds a command that is listed and cannot be run."""
    if entry.is_group:
        app.add_typer(typer.Typer(help=entry.help, callback=_listed, invoke_without_command=True), name=entry.name)
    else:
        app.command(entry.name, help=entry.help)(_listed)


def _listed() -> None:
    """Never called: a command that is asked for by its name is built from its module."""
    raise AssertionError


def _find_endpoints(given: str | None) -> tuple[tuple[str, ...], str]:
    """Where the cluster is: the commands of other packages find this function in the context of the command line."""
    from cluster.cli_frame import ended, find_endpoints

    found: list[tuple[tuple[str, ...], str]] = []
    ended(lambda: found.append(find_endpoints(given)))
    return found[0]


def _show_version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata

        print(f"raftlog {importlib.metadata.version('raftlog')}")
        raise typer.Exit


def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Has no work of its own: `--version` is done when it is met."""
