"""Defines the command `raftlog demo`."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.status import Status
from rich.table import Table

from raftlog.cluster.cli.frame.common import CommandFailed, Commands, Exit, ended
from raftlog.cluster.cli.nodes import browse, choose_ports

commands = Commands()
register = commands.register


@commands.app.command("demo")
def demo_command(
    source: Annotated[
        Path | None,
        typer.Option(
            "--input",
            help="NDJSON, CSV, access log, or any lines; without it one line per changed file of each commit.",
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="The field that becomes the key, as of raftlog import.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the cluster up, and everything in its folder.")] = False,
    secure: Annotated[bool, typer.Option("--secure", help="With TLS and access control, Spark too.")] = False,
    opens: Annotated[bool, typer.Option("--open", help="Open the console in a browser, to watch it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
    no_spark: Annotated[bool, typer.Option("--no-spark", hidden=True)] = False,
) -> None:
    """Show the whole job: import, a killed leader, the table, an export through Spark, and the proof of it all."""
    ended(lambda: _demo(source, key, keep, as_json, with_spark=not no_spark, secure=secure, opens=opens))


def _demo(
    source: Path | None, key: str | None, keep: bool, as_json: bool, *, with_spark: bool, secure: bool, opens: bool
) -> None:
    from raftlog.cluster.demo import story as demo
    from raftlog.cluster.node.local_cluster import LocalCluster, LocalClusterError

    if source is not None and not source.is_file():
        other = "is a folder, not a file" if source.is_dir() else "is no file that can be read twice: copy it into one"
        what = other if source.exists() else "is not there"
        raise CommandFailed(f"--input {source} {what}", Exit.USAGE)
    signal.signal(signal.SIGTERM, _interrupted)
    console = Console(stderr=True, highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="raftlog-demo-"))
    cluster: LocalCluster | None = None
    story = demo.Story(folder, demo.DemoInput(source or folder / "input.ndjson", key))
    try:
        try:
            if with_spark:
                demo.check_spark()
            with console.status("…") as status:
                demo.prepare(story.input, _Teller(console, status))
        except demo.BadInput as error:
            raise CommandFailed(f"the demo did not begin: {error}", Exit.USAGE) from error
        try:
            with console.status("…") as status:
                tell = _Teller(console, status)
                ports = choose_ports(demo.NODES, None)
                with LocalCluster(folder / "data", demo.NODES, ports=ports, secure=secure) as cluster:
                    demo.serve(cluster, tell)
                    console.print(browse(cluster.urls[0], opens=opens))
                    demo.run(story, cluster, tell, with_spark=with_spark)
        except (demo.DemoFailed, LocalClusterError) as error:
            keep = True
            tails = cluster.tails() if cluster is not None else ""
            raise CommandFailed(f"the demo failed: {error}", hint=f"Everything is in {folder}:\n{tails}") from error
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        results = msgspec.to_builtins(story, enc_hook=str)
        print(json.dumps(results.pop("input") | results.pop("kill") | results))
    else:
        _show(demo.sentences(story))
    if keep:
        try:
            pid = demo.keep_up(cluster, folder / "up.log")
        except demo.DemoFailed as error:
            raise CommandFailed(str(error)) from error
        console.print(f"the cluster is up: {', '.join(cluster.urls)}; its folder {folder}")
        console.print(f"stop it with: kill {pid}; start it again with: raftlog up --data {folder / 'data'}")


class _Teller:
    """Shows the current step: on a terminal in one changing line, else each step once."""

    def __init__(self, console: Console, status: Status) -> None:
        self._console = console
        self._status = status
        self._step = ""

    def __call__(self, text: str) -> None:
        self._status.update(text)
        step = text.partition(":")[0]
        if not self._console.is_terminal and step != self._step:
            self._console.print(text)
        self._step = step


def _interrupted(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


def _show(rows: Sequence[tuple[str, str]]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for what, result in rows:
        table.add_row(what, result)
    Console(highlight=False).print(table)
