"""Commands that run nodes on this machine: up, node, format, demo."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from cluster.cli_admin import ask_all, node_flags, overview, status_table
from cluster.cli_frame import Cli, Exit, Failed, command, ended
from cluster.cli_state import DEFAULT_PORT, forget, remember
from cluster.client_core import normal_url
from cluster.cluster_file import SettingsError
from cluster.output import Column, View, lines_of
from cluster.settings import DiskSettings, load_settings

PEER_PORT_OFFSET: Final = 100
"""Node 1 of `--port 7001` talks to its peers on 7101."""

FORMATTED: Final = View((Column("data"),), lines_of("data"))


def up_command(
    nodes: Annotated[int, typer.Option("--nodes", help="How many nodes.", min=1, max=9)] = 3,
    data: Annotated[
        Path | None, typer.Option("--data", help="Keep the data in this folder. Without it nothing is left behind.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", help="Port of the first node's API, the others follow; peers use those 100 above. "
                     f"[default: {DEFAULT_PORT}, or free ones if those are taken]", min=1, max=65_000),
    ] = None,
    assignments: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, a setting of every node.")] = None,
) -> None:  # fmt: skip
    """Run a cluster on this machine until Ctrl-C, and show how it is."""
    ended(lambda: _up(nodes, data, port, node_flags(None, assignments)))


def _up(nodes: int, data: Path | None, port: int | None, settings: dict[str, Any]) -> None:
    from cluster.disk_errors import DiskError
    from cluster.local_cluster import CLUSTER_FILE, LocalCluster, LocalClusterError

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="raftlog-") as temporary:
        folder = data or Path(temporary) / "data"
        is_old = (folder / CLUSTER_FILE).exists()
        ports = () if is_old else choose_ports(nodes, port)
        try:
            cluster = LocalCluster(folder, nodes, settings=settings, ports=ports)
        except (SettingsError, DiskError) as error:
            raise Failed(str(error), Exit.USAGE) from error
        if is_old and len(cluster.nodes) != nodes and nodes != 3:
            raise Failed(f"{folder} holds a cluster of {len(cluster.nodes)} nodes; leave --nodes out", Exit.USAGE)
        with cluster:
            try:
                cluster.start()
                cluster.wait_ready()
            except LocalClusterError as error:
                raise Failed(str(error)) from error
            urls = {node: normal_url(cluster.place(node).url) for node in cluster.nodes}
            remember(list(urls.values()))
            try:
                _show_until(stop, console, cluster, urls, f"data in {folder}" if data else "data is removed at the end")
            finally:
                forget()
        console.print("stopped" + (f"; start again with: raftlog up --data {data}" if data else ""))


def choose_ports(nodes: int, port: int | None) -> list[int]:
    """The peers' ports, then the APIs'. Raises Failed where those asked for are taken."""
    from cluster.local_cluster import free_ports

    base = DEFAULT_PORT if port is None else port
    ports = [base + PEER_PORT_OFFSET + number for number in range(nodes)] + [base + number for number in range(nodes)]
    taken = [each for each in ports if not _is_free(each)]
    if not taken:
        return ports
    if port is not None:
        raise Failed(f"port {taken[0]} is in use: stop what listens there, or give another --port")
    print(f"port {taken[0]} is in use: taking free ones", file=sys.stderr)
    return free_ports(2 * nodes)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return True
    return False


def _show_until(stop: threading.Event, console: Console, cluster: Any, urls: dict[int, str], note: str) -> None:
    """The table of nodes until Ctrl-C; without a terminal only once, and what happens to nodes."""
    tips = Text(
        "\nIn another terminal:\n"
        "  raftlog put hello world      raftlog get hello        raftlog append 'a record'\n"
        "  raftlog log --follow         raftlog watch            raftlog status --watch\n"
        f"  curl {next(iter(urls.values()))}/        ({note}; Ctrl-C stops the cluster)"
    )
    if not console.is_terminal:
        for node, url in urls.items():
            console.print(f"node {node}  {url}  pid {cluster.pid(node)}")
        console.print(tips, soft_wrap=True)
        sys.stdout.flush()
    gone: set[int] = set()
    with Live(console=console, auto_refresh=False) as live:
        while not stop.is_set():
            for node in cluster.nodes:
                if cluster.pid(node) is None and node not in gone:
                    gone.add(node)
                    console.print(f"node {node} has ended; its log: {cluster.log_file(node)}", style="red")
            if console.is_terminal:
                shown = overview(urls, ask_all(urls.values(), 0.5))
                live.update(Group(status_table(shown), tips), refresh=True)
            stop.wait(0.5)


def node_command(
    config: Annotated[
        Path | None, typer.Option("--config", help="The node's settings file, or a cluster file.")
    ] = None,
    node: Annotated[int | None, typer.Option("--node", help="Which node of the cluster file this is.", min=1)] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE, over file and environment.")
    ] = None,
) -> None:
    """Run one node until SIGTERM or Ctrl-C. Logs to standard error.

    Exit codes: 0 stopped as asked, 2 settings, 10 address in use, 11 data folder, 12 read-only, 13 disk error while
    running, 14 data of a newer version.
    """
    from cluster.launcher import run_node

    def run() -> None:
        try:
            loaded = load_settings(config, os.environ, node_flags(node, assignments))
        except SettingsError as error:
            raise Failed(str(error), Exit.USAGE) from error
        raise typer.Exit(run_node(loaded))

    ended(run)


def format_command(
    cli: Cli,
    file: Annotated[Path, typer.Argument(help="The cluster file (TOML), as `raftlog up --data` makes one.")],
    nodes: Annotated[
        list[int] | None, typer.Option("--node", help="Only this node; may be given again.", min=1)
    ] = None,
    segment_bytes: Annotated[
        int, typer.Option("--segment-bytes", help="Size of a segment.", min=1 << 16)
    ] = DiskSettings().segment_bytes,
) -> None:
    """Make the data folders that a cluster file names. Done once; a folder with something in it is never touched."""
    from cluster.disk_errors import DiskError
    from cluster.launcher import format_file

    try:
        folders = format_file(file, segment_bytes=segment_bytes, nodes=nodes or ())
    except SettingsError as error:
        raise Failed(str(error), Exit.USAGE) from error
    except DiskError as error:
        raise Failed(str(error)) from error
    cli.printer.all([{"data": str(folder)} for folder in folders], FORMATTED)


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("up")(up_command)
    app.command("node")(node_command)
    command(app, "format")(format_command)
