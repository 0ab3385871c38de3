"""The command line: puts the commands together, those of other packages by their entry points."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from cluster import (
    cli_admin,
    cli_backup,
    cli_consumers,
    cli_demo,
    cli_disk,
    cli_explain,
    cli_kv,
    cli_local,
    cli_log,
    cli_members,
)
from cluster.cli_frame import find_endpoints

HELP: Final = """raftlog: a replicated log, with a key-value store on it.

Start a cluster with [bold]raftlog up[/bold]; in another terminal try [bold]raftlog put hello world[/bold]."""

COMMANDS_GROUP: Final = "raftlog.commands"
"""Entry points of functions that take the app: chaos and spark_export register themselves here. Their commands find the
cluster as all others do by `find_endpoints`, the object of the command line's context."""


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"raftlog {importlib.metadata.version('raftlog')}")
        raise typer.Exit


def build(words: Sequence[str] = ()) -> typer.Typer:
    """The whole command line; without the commands of other packages, which take long to import, where the first of
    `words` is one of its own."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"], "obj": find_endpoints},
        help=HELP,
    )
    app.callback()(_main)
    for module in (
        cli_kv,
        cli_log,
        cli_admin,
        cli_consumers,
        cli_members,
        cli_local,
        cli_disk,
        cli_backup,
        cli_explain,
        cli_demo,
    ):
        module.register(app)
    own = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    if words and words[0] in own:
        return app
    for entry in importlib.metadata.entry_points(group=COMMANDS_GROUP):
        try:
            register = entry.load()
        except ModuleNotFoundError as error:
            if error.name is None or not entry.module.startswith(error.name):
                raise  # it is there, and something that it needs is not
            continue  # a package of the project that is not built yet, or was left out
        register(app)
    return app


def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Has no work of its own: `--version` is done when it is met."""


def main() -> None:
    """The console script `raftlog`."""
    sys.argv[0] = "raftlog"  # also when started as python -m cluster.cli
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started it (`>&-`)
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
    build(sys.argv[1:])()


if __name__ == "__main__":
    main()
