"""Lists every command with its module and its help, and builds the command line from them.

Only the module of the requested command is imported. This table is enough for `raftlog --help`, for the completion of
names and for a misspelt name. Importing every module takes ten times as long as most commands.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperGroup

HELP: Final = """raftlog: a replicated log, with a key-value store on it.

Start a cluster with [bold]raftlog up[/bold]; in another terminal try [bold]raftlog put hello world[/bold]."""


class CommandHelp(NamedTuple):
    """A command, or a group of commands: its name, and the first paragraph of its help."""

    name: str
    help: str
    is_group: bool = False


MODULES: Final[Mapping[str, tuple[CommandHelp, ...]]] = {
    "raftlog.cluster.cli.kv": (
        CommandHelp("put", "Write one key."),
        CommandHelp(
            "get", "Read one key. Exit code 3 if it is not there. With -o raw: the value's bytes and nothing else."
        ),
        CommandHelp(
            "del", "Delete one key or many; `deleted` says how many there were. Exit code 3 if there was none."
        ),
        CommandHelp("range", "List keys and values in order, all as of one moment."),
        CommandHelp(
            "txn",
            "Compare, then carry out one of two branches, at once. Both branches exit with 0; `succeeded` says which "
            "ran.",
        ),
        CommandHelp("watch", "Print changes as they happen, until Ctrl-C. Goes on by itself when a node is lost."),
        CommandHelp("compact", "Let go of the history of keys below a revision."),
    ),
    "raftlog.cluster.cli.log": (
        CommandHelp("append", "Append records: all of them, one after the other, or none."),
        CommandHelp("log", "Print the log in order. With -o raw: the values, one a line.", is_group=True),
        CommandHelp(
            "audit",
            "List what changed the cluster, from its own log: permissions, members, trims, compactions, deletes by "
            "range.",
        ),
    ),
    "raftlog.cluster.cli.importing": (
        CommandHelp(
            "import",
            "Append the lines of files, exactly once and in order: when it is killed, start it again in the same way.",
        ),
    ),
    "raftlog.cluster.cli.import_postgres": (
        CommandHelp(
            "import-postgres",
            "Append the rows of PostgreSQL tables and every change of them, exactly once: start it again after a kill.",
        ),
    ),
    "raftlog.cluster.cli.sink": (
        CommandHelp("sink", "Stores that follow the log: databases, caches and search indexes.", is_group=True),
    ),
    "raftlog.cluster.cli.admin": (
        CommandHelp(
            "status",
            "Show the leader, and each node's term, commit, match, lag in records and seconds, and last contact.",
        ),
        CommandHelp("digest", "Show the digest of the state, by which replicas and exports are compared."),
        CommandHelp("snapshot", "Save the state of one node as a snapshot now: of the first URL."),
        CommandHelp("session", "Sessions and receipts: was a write applied?", is_group=True),
        CommandHelp("settings", "The settings of a node.", is_group=True),
        CommandHelp("version", "Show the version, whether compiled or interpreted modules run, and the interpreter."),
    ),
    "raftlog.cluster.cli.top": (
        CommandHelp("top", "Show nodes, rates, lags, the hottest prefixes and slow requests, until Ctrl-C."),
    ),
    "raftlog.cluster.cli.consumers": (
        CommandHelp("consumers", "Consumer groups: positions, owners and lags of named readers.", is_group=True),
    ),
    "raftlog.cluster.cli.members": (
        CommandHelp("members", "The members: list, add, promote, remove, replace, move.", is_group=True),
        CommandHelp("leader", "The leader: hand leadership over.", is_group=True),
    ),
    "raftlog.cluster.cli.nodes": (
        CommandHelp("up", "Run a cluster on this machine until Ctrl-C, and show its state."),
        CommandHelp("node", "Run one node until SIGTERM or Ctrl-C. Logs to standard error."),
        CommandHelp(
            "create", "Make the files of a new cluster on several machines, with TLS and a certificate for each node."
        ),
        CommandHelp(
            "format", "Make the data folders that a cluster file names, or that of the new node of a join file."
        ),
    ),
    "raftlog.cluster.cli.cert": (
        CommandHelp("cert", "Certificates: of the authority, of nodes, of clients.", is_group=True),
    ),
    "raftlog.cluster.cli.access": (
        CommandHelp("access", "Access control: the first admin, and why a user may do something.", is_group=True),
        CommandHelp("role", "Roles: sets of grants.", is_group=True),
        CommandHelp("user", "Users: their roles.", is_group=True),
        CommandHelp("profile", "Profiles: clusters by name, with their files.", is_group=True),
        CommandHelp("token", "Tokens of users.", is_group=True),
    ),
    "raftlog.cluster.cli.disk": (CommandHelp("disk", "Check or print the files of a stopped node.", is_group=True),),
    "raftlog.cluster.cli.debug": (CommandHelp("debug", "Collect what others need to help you.", is_group=True),),
    "raftlog.cluster.cli.backup": (
        CommandHelp(
            "backup",
            "Save a running cluster into a folder or an object store: log and state. The next run adds new entries.",
        ),
        CommandHelp("restore", "Make the data folders of a new cluster from a backup; then start its nodes."),
        CommandHelp("recover", "Make a new cluster from the remaining folders after a majority was lost for good."),
    ),
    "raftlog.cluster.cli.explain": (
        CommandHelp("explain", "Explain why there is no leader or no progress, or what happened to a record."),
    ),
    "raftlog.cluster.cli.doctor": (
        CommandHelp(
            "doctor", "Look at this machine before a node runs on it: Python, files, clock, disk, addresses, Java."
        ),
    ),
    "raftlog.cluster.cli.bench": (
        CommandHelp("bench", "Put a load on a running cluster: rates, latencies, and the difference to the last run."),
    ),
    "raftlog.cluster.cli.demo": (
        CommandHelp(
            "demo",
            "Show the whole job: import, a killed leader, the table, an export through Spark, and the proof of it all.",
        ),
    ),
    # Packages above this one. They are named as text, so that no import points upwards.
    "raftlog.chaos.commands.check": (
        CommandHelp("chaos", "Breaks clusters on purpose, and judges what their clients saw.", is_group=True),
    ),
    "raftlog.spark_export.commands.export": (
        CommandHelp(
            "verify",
            "Prove that an export is what the cluster committed: its files are compared with the cluster's digests.",
        ),
        CommandHelp(
            "export",
            "Export the log to Parquet files or a Delta table, with a manifest that `raftlog verify` proves.",
            is_group=True,
        ),
        CommandHelp("analyze", "Windows and joins of an export, or a running cluster, with Spark.", is_group=True),
    ),
    "raftlog.spark_export.commands.query": (
        CommandHelp("query", "Answer SQL about an export, or a running cluster, with DuckDB."),
    ),
    "raftlog.chaos.sim.runs.commands": (
        CommandHelp(
            "sim",
            "Run whole clusters in one process, under a seeded clock, network, disks and faults, with everything "
            "checked.",
        ),
    ),
}
"""The commands of each module. Its function `register(app)` adds them in this order."""


_HELP_OF: Final = {entry.name: entry.help for entries in MODULES.values() for entry in entries}


PANELS: Final[Mapping[str, tuple[str, ...]]] = {
    "First steps": ("up", "put", "get", "append", "log", "status"),
    "Data": ("del", "range", "txn", "watch", "compact", "session"),
    "Log": ("import", "import-postgres", "sink", "consumers", "digest", "audit"),
    "Cluster": (
        *("create", "format", "node", "settings", "explain", "top", "members", "leader", "snapshot"),
        *("backup", "restore", "recover", "disk", "debug", "doctor"),
    ),
    "Access": ("access", "role", "user", "token", "cert", "profile"),
    "Analysis": ("export", "verify", "query", "analyze"),
    "Tools": ("demo", "bench", "version", "chaos", "sim"),
}
"""The commands as `raftlog --help` shows them."""
_PANEL_OF: Final = {name: panel for panel, names in PANELS.items() for name in names}


_UsageError: Final = typer.BadParameter.__mro__[1]
"""The error of a command that is not valid as written. typer gives no name to it."""
_JSON: Final = ("json", "jsonl")
_COMMON: Final = ("-e", "--endpoints", "--discover", "-o", "--output", "--encoding", "--deadline")
"""The options that every command has, see `raftlog.cluster.cli.frame.common`."""


class _Group(TyperGroup):
    """The command line. With `-o json` a usage error is one JSON object too."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Its commands in the order of `PANELS`."""
        return [name for name in _PANEL_OF if name in self.commands]

    def main(self, args: Sequence[str] | None = None, *given: Any, **more: Any) -> Any:
        """Runs the command of `args`, by default of this process."""
        words = sys.argv[1:] if args is None else list(args)
        if not _asks_for_json(words):
            return super().main(args, *given, **more)
        try:
            code = super().main(args, *given, **{**more, "standalone_mode": False})
        except _UsageError as error:  # type: ignore[misc]  # it is a class of exceptions
            shown = {"error": error.format_message(), "exit": error.exit_code, "code": "usage"}
            print(json.dumps(shown, ensure_ascii=False), file=sys.stderr)
            sys.exit(error.exit_code)
        sys.exit(code or 0)


def _asks_for_json(words: Sequence[str]) -> bool:
    joined = {option + form for option in ("-o", "-o=", "--output=") for form in _JSON}
    return not joined.isdisjoint(words) or any(
        word in ("-o", "--output") and after in _JSON for word, after in itertools.pairwise(words)
    )


def command_first(arguments: Sequence[str]) -> list[str]:
    """The arguments with the common options that stand before the command, or before the one of its group, moved
    behind it, where they belong."""
    rest = list(arguments)
    moved: list[str] = []
    for place in (0, 1):
        while rest[place:] and (rest[place].partition("=")[0] in _COMMON or rest[place][:2] in ("-e", "-o")):
            end = place + (2 if rest[place] in _COMMON else 1)
            moved += rest[place:end]
            del rest[place:end]
    end = rest.index("--") if "--" in rest else len(rest)
    return [*rest[:end], *moved, *rest[end:]]


def asked_for(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """The requested command, or the one whose options the shell completes; "" for none."""
    if "_RAFTLOG_COMPLETE" in environment:
        line = environment.get("COMP_WORDS") or environment.get("_TYPER_COMPLETE_ARGS", "")
        arguments = line.split()[1:]
    return next((word for word in arguments if not word.startswith("-")), "")


def build(name: str | None = None) -> typer.Typer:
    """Builds the command line. With the name of a command it has only that one, and without a name all commands.

    With any other name it lists all commands, but none can be run.
    """
    app = typer.Typer(
        cls=_Group,
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
        if name is not None:  # typer inspects every parameter of every command that it has
            app.registered_commands = [each for each in app.registered_commands if each.name == name]
            app.registered_groups = [each for each in app.registered_groups if each.name == name]
    else:
        for entry in itertools.chain.from_iterable(MODULES.values()):
            _list(app, entry)
    each: Any
    for each in app.registered_groups:
        each.typer_instance.info.help = each.typer_instance.info.help or _HELP_OF[each.name]
    for each in (*app.registered_commands, *app.registered_groups):
        each.rich_help_panel = _PANEL_OF[str(each.name)]
    return app


def _list(app: typer.Typer, entry: CommandHelp) -> None:
    """Adds a command that is listed and cannot be run."""
    if entry.is_group:
        app.add_typer(typer.Typer(help=entry.help, callback=_listed, invoke_without_command=True), name=entry.name)
    else:
        app.command(entry.name, help=entry.help)(_listed)


def _listed() -> None:
    """Never called: a requested command is built from its module."""
    raise AssertionError


def _find_endpoints(given: str | None) -> tuple[tuple[str, ...], str]:
    """Where the cluster is: the commands of other packages find this function in the context of the command line."""
    from raftlog.cluster.cli.frame.common import ended, find_endpoints

    found: list[tuple[tuple[str, ...], str]] = []
    ended(lambda: found.append(find_endpoints(given)))
    return found[0]


def _show_version(wanted: bool) -> None:
    if wanted:
        from raftlog.cluster.runtime import build

        print("raftlog {version}, {modules} modules, {python}".format(**build.facts()))
        raise typer.Exit


def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Does nothing: `--version` is handled when it is parsed."""
