"""Defines the commands that run nodes on this machine: up, node, format, demo."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer
from msgspec.structs import replace

from raftlog.cluster.api.text import counted
from raftlog.cluster.cli.admin import look, node_flags
from raftlog.cluster.cli.frame.common import Cli, CommandFailed, Commands, Exit, ended, say
from raftlog.cluster.cli.frame.last_cluster import DEFAULT_PORT, forget, remember
from raftlog.cluster.cli.frame.output import view
from raftlog.cluster.cli.frame.profiles import Profile, use_files
from raftlog.cluster.cli.frame.status_table import status_table
from raftlog.cluster.cli.frame.stopping import StopSignal
from raftlog.cluster.client.decisions import normal_url
from raftlog.cluster.config.cluster_file import AGAIN, FORCE
from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.config.settings import DiskSettings, load_settings
from raftlog.cluster.node.ports import free_ports, is_claimed, is_free
from raftlog.cluster.runtime.file_errors import PRIVATE_FOLDER, locked

if TYPE_CHECKING:
    from rich.console import Console

commands = Commands()
register = commands.register

PEER_PORT_OFFSET: Final = 100
"""Added to the port of a node's API for its peers: node 1 of `--port 7001` listens for peers on 7101."""
NODES: Final = 3
LEAVING_S: Final = 3.0
"""Longest wait for the end of the nodes of a killed `up`, in seconds; after it their ports count as taken."""
MENDED_BY_A_START: Final = (NodeExit.DIVERGED, NodeExit.DAMAGED)
STARTS_AGAIN_MAX: Final = 5
"""Most restarts of one node by `raftlog up`; then an operator must look at its disk."""
TROUBLE_TURNS: Final = 10
"""Without a terminal `raftlog up` asks its nodes every so many half seconds whether something is wrong."""

CREATED: Final = view("node", "url", "copy", "start", raw="copy")
FORMATTED: Final = view("data", raw="data")


TWO_NODES: Final = "two nodes tolerate no failure: without either of them nothing is written. Three tolerate one"


@commands.app.command("up")
def up_command(
    nodes: Annotated[
        int | None, typer.Option("--nodes", help=f"How many nodes. [default: {NODES}]", min=1, max=9)
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Keep the data in this folder. Without it nothing is left behind.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            help="Port of the first node's API, the others follow; peers use those 100 above. "
            f"[default: {DEFAULT_PORT}, or free ones if those are taken]",
            min=1,
            max=65_000,
        ),
    ] = None,
    assignments: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, a setting of every node.")] = None,
    secure: Annotated[
        bool, typer.Option("--secure", help="TLS and access control; the files are in the folder `tls` of the data.")
    ] = False,
    opens: Annotated[bool, typer.Option("--open", help="Open the console in a browser.")] = False,
) -> None:
    """Run a cluster on this machine until Ctrl-C, and show its state."""
    ended(lambda: _up(nodes, data, port, node_flags(None, assignments), secure=secure, opens=opens))


def _up(
    nodes: int | None, data: Path | None, port: int | None, settings: dict[str, Any], *, secure: bool, opens: bool
) -> None:
    say(f"starting nodes: {NODES if nodes is None else nodes}" if data is None else f"starting the cluster in {data}")
    from rich.console import Console  # here: rich takes long to import, and `raftlog node` does not need it

    from raftlog.cluster.files.errors import DiskError
    from raftlog.cluster.node.first_admin import AccessState, ensure_first_admin, use_token
    from raftlog.cluster.node.local_cluster import CLUSTER_FILE, LocalCluster, LocalClusterError

    stop = StopSignal()
    is_up = False

    def end(*_: object) -> None:
        stop.set()
        if not is_up:
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    console = Console(highlight=False)
    with nullcontext(data) if data else tempfile.TemporaryDirectory(prefix="raftlog-") as where, _held(where) as folder:
        is_old = (folder / CLUSTER_FILE).exists()
        count = NODES if nodes is None else nodes
        ports = () if is_old else choose_ports(count, port)
        try:
            cluster = LocalCluster(folder, count, settings=settings, ports=ports, secure=secure)
        except DiskError as error:
            raise CommandFailed(str(error), Exit.USAGE) from error
        urls = {node: normal_url(cluster.place(node).url) for node in cluster.nodes}
        first = next(iter(urls.values()))
        if is_old:
            if nodes not in (None, len(cluster.nodes)):
                raise CommandFailed(
                    f"{folder} holds a cluster of {counted(len(cluster.nodes), 'node')}; leave --nodes out", Exit.USAGE
                )
            if port not in (None, urlsplit(first).port):
                raise CommandFailed(f"{folder} holds a cluster that is at {first}; leave --port out", Exit.USAGE)
            if secure and not cluster.is_secure:
                raise CommandFailed(
                    f"{folder} holds a cluster without TLS; leave --secure out, use a new folder, or change it to TLS "
                    "by the steps of docs/security.md",
                    Exit.USAGE,
                )
            _await_ports([address for each in cluster.cluster.node for address in (each.peer, each.url)])
        tls = cluster.tls_files() if cluster.is_secure else None
        if tls is not None:
            tls.to_environment()
        with cluster:
            began = time.monotonic()
            other: tuple[str, ...] = ()
            try:
                cluster.start()
                for node, url in urls.items():
                    cluster.wait_ready([node])
                    say(f"node {node} serves at {url} after {time.monotonic() - began:.1f} s")
                access = AccessState(is_on=False, token=None) if tls is None else ensure_first_admin(cluster)
            except LocalClusterError as error:
                raise CommandFailed(str(error)) from error
            if access.token is not None:
                use_token(access.token)
            if access.is_on:
                where = f"; the token of its first admin is in {access.token}" if access.token is not None else ""
                say(f"access control is on{where}")
            elif tls is not None:
                say(
                    "access control is off: a client with any certificate of this authority may do everything. "
                    f"Switch it on: raftlog access enable --config {cluster.settings_file(cluster.nodes[0])}"
                )
            if len(cluster.nodes) == 2:
                say(TWO_NODES)
            is_up = True
            try:
                other = remember(list(urls.values()), tls, str(access.token or ""))
            except OSError as error:
                say(
                    f"{error.filename}: {error.strerror}: other commands will not find this cluster by themselves; "
                    f"give them -e {first}"
                )
            if settings.get("http.console", "true") != "false":
                say(browse(first, opens=opens))
            try:
                note = f"data in {folder}" if data else "data is removed at the end"
                _show_until(stop, console, cluster, urls, note, other)
            finally:
                with suppress(OSError):
                    forget()
        console.print("stopped" + (f"; start again with: raftlog up --data {data}" if data else ""))


def browse(url: str, *, opens: bool) -> str:
    """Where a cluster's console is; with `opens` a browser shows it, if there is one with a window."""
    if not opens:
        return f"{url}/ shows it in a browser"
    import webbrowser  # here: most commands open none

    has_window = sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))
    if has_window and webbrowser.open(f"{url}/"):
        return f"{url}/ is open in a browser"
    return f"no browser with a window was found here: open {url}/ in one"


@contextmanager
def _held(where: Path | str) -> Iterator[Path]:
    """The folder, locked for this `raftlog up` alone. Raises CommandFailed, or FolderForeign."""
    from raftlog.cluster.offline.places import check_outside  # here: it takes long to import

    folder = Path(where)
    check_outside(folder / "node-1")
    folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    taken = f"another `raftlog up` runs the cluster in {folder}: use that one (raftlog status), or give another --data"
    with locked(folder, CommandFailed(taken)):
        yield folder


def _await_ports(addresses: list[str]) -> None:
    """Waits a moment until no process listens at the old cluster's ports: else its nodes could not start, and others
    that answer there would be taken for them. Raises CommandFailed."""
    end = time.monotonic() + LEAVING_S
    for address in addresses:
        port = urlsplit(address if "//" in address else f"//{address}").port
        while port and not is_free(port):
            if time.monotonic() >= end:
                raise CommandFailed(
                    f"port {port} is in use, where this cluster has a node: if it is this very node, stop it "
                    "(it was started by `raftlog node`), else stop what listens there"
                )
            time.sleep(0.05)


def choose_ports(nodes: int, port: int | None) -> list[int]:
    """The peers' ports, then the APIs'. Without a `port` they belong to this process until it ends, so two clusters
    that start at once never choose the same. Raises CommandFailed if requested ones are taken."""
    base = DEFAULT_PORT if port is None else port
    ports = [base + PEER_PORT_OFFSET + number for number in range(nodes)] + [base + number for number in range(nodes)]
    taken = [each for each in ports if not (is_claimed if port is None else is_free)(each)]
    if not taken:
        return ports
    if port is not None:
        raise CommandFailed(f"port {taken[0]} is in use: stop what listens there, or give another --port")
    say(f"port {taken[0]} is in use: taking free ones")
    return free_ports(2 * nodes)


def _show_until(
    stop: StopSignal, console: Console, cluster: Any, urls: dict[int, str], note: str, other: Sequence[str] = ()
) -> None:
    """Shows the table of nodes until Ctrl-C; without a terminal once, and then each end of a node and each trouble.

    `other`: the cluster to which reads go unless they are given a URL of this one.
    """
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    own = next(iter(urls.values()))
    last = "raftlog members list" if own.startswith("https:") else f"curl {own}/"
    tips = Text(
        "\nIn another terminal:\n"
        + (
            f"  export RAFTLOG_ENDPOINTS={own}\n"
            f"  # without it reads go to the cluster at {other[0]}, which ran before this one, and writes are refused\n"
            if other
            else ""
        )
        + "  raftlog put hello world      raftlog get hello        raftlog append 'a record'\n"
        "  raftlog log --follow         raftlog watch            raftlog status --watch\n"
        f"  {last}        ({note}; Ctrl-C stops the cluster)\n"
        f"In a browser: {own}/"
    )
    if not console.is_terminal:
        for node, url in urls.items():
            console.print(f"node {node}  {url}  pid {cluster.pid(node)}")
        console.print(tips, soft_wrap=True)
        sys.stdout.flush()
    gone: set[int] = set()
    started_again = dict.fromkeys(cluster.nodes, 0)
    trouble = None
    with Live(console=console, auto_refresh=False) as live:
        for turn in itertools.count(1):
            if stop.is_set():
                break
            for node in cluster.nodes:
                if cluster.pid(node) is not None or node in gone:
                    continue
                if (code := cluster.exit_code(node)) in MENDED_BY_A_START and started_again[node] < STARTS_AGAIN_MAX:
                    started_again[node] += 1
                    ending = f"node {node} has ended with exit code {code}: it is started again and repairs its files"
                    console.print(f"{ending}; its log: {cluster.log_file(node)}", style="yellow", soft_wrap=True)
                    cluster.start_node(node)
                else:
                    gone.add(node)
                    console.print(_obituary(cluster, node), style="red", soft_wrap=True)
            if len(gone) == len(cluster.nodes):
                raise CommandFailed("every node of this cluster has ended: see their logs")
            if console.is_terminal:
                live.update(Group(status_table(look(urls, 0.5)), tips), refresh=True)
            elif turn % TROUBLE_TURNS == 0 and (now := look(urls, 0.5).get("trouble")) != trouble:
                console.print(now or "the trouble is over", style="red" if now else "", soft_wrap=True, markup=False)
                trouble = now
            stop.wait(0.5)


def _obituary(cluster: Any, node: int) -> str:
    """Why a node ended, and how to start it again."""
    code = cluster.exit_code(node)
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"has ended with exit code {code}"
    again = f"raftlog node --config {cluster.settings_file(node)} --set stop_with_stdin=false"
    return f"node {node} {how}; its log: {cluster.log_file(node)}; start it again with: {again}"


@commands.app.command("node")
def node_command(
    config: Annotated[
        Path | None, typer.Option("--config", help="The node's settings file, or a cluster file.")
    ] = None,
    node: Annotated[int | None, typer.Option("--node", help="Which node of the cluster file this is.", min=1)] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE, over file and environment.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond loopback without TLS and without access control.")
    ] = False,
    format_new: Annotated[
        bool,
        typer.Option(
            "--format-new",
            help="Make the data folder if it is missing, once all members answer that the cluster was never led.",
        ),
    ] = False,
) -> None:
    """Run one node until SIGTERM or Ctrl-C. Logs to standard error.

    Exit codes: 0 stopped as asked, 2 settings, 10 address in use, 11 data folder, 12 read-only, 13 disk error while
    running, 14 data of a newer version, 15 stopped as asked and no member any more, 16 its state differed from the
    others', 17 its files are damaged: after these two start it again: it repairs its files.
    """
    from raftlog.cluster.node.process import run_node

    def run() -> None:
        more = {"security.insecure": True} if insecure else {}
        code = run_node(
            lambda: load_settings(config, os.environ, node_flags(node, assignments) | more), format_new=format_new
        )
        raise typer.Exit(code)

    ended(run)


@commands("create")
def create_command(
    cli: Cli,
    hosts: Annotated[list[str], typer.Argument(help="Host names or addresses of the machines, one node on each.")],
    folder: Annotated[Path, typer.Option("--folder", help="A new folder for the files.")] = Path("raftlog-cluster"),
    port: Annotated[
        int, typer.Option("--port", help="Port of every node's API; peers use the one 100 above.", min=1, max=65_000)
    ] = DEFAULT_PORT,
) -> None:
    """Make the files of a new cluster on several machines, with TLS and a certificate for each node.

    Then copy each folder machine-N to its machine, and start the node there: the output has the commands.
    """
    from raftlog.cluster.node.formatting import UNIT, create_cluster

    made = create_cluster(folder, hosts, port=port, peer_port=port + PEER_PORT_OFFSET)
    rows = [
        {
            "node": node,
            "url": made.cluster.node[node - 1].url,
            "copy": str(where),
            "start": f"raftlog format cluster.toml --node {node} && raftlog node --config node.toml",
        }
        for node, where in made.machines.items()
    ]
    cli.printer.all(rows, CREATED)
    if len(hosts) == 2:
        say(TWO_NODES)
    files = made.operator
    say(f"or as services of systemd: each folder has a unit {UNIT}; docs/three_machines.md has the commands")
    say(
        f"keep {folder / 'tls' / 'ca.key'} in a safe place: it makes further certificates. Once the nodes run, make "
        "the first admin on one of the machines: raftlog access init operator --config node.toml\n"
        "To use the cluster:\n"
        f"export RAFTLOG_ENDPOINTS={','.join(each.url for each in made.cluster.node)}\n"
        f"export RAFTLOG_CA={files.ca} RAFTLOG_CERTIFICATE={files.certificate} RAFTLOG_KEY={files.key}"
    )


@commands("format")
def format_command(
    cli: Cli,
    file: Annotated[
        Path | None, typer.Argument(help="The cluster file (TOML), as `raftlog up --data` makes one.")
    ] = None,
    join: Annotated[
        Path | None, typer.Option("--join", help="Instead: a join file, as `raftlog members add` writes one.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="With --join: the new data folder; its path is written to the file.")
    ] = None,
    nodes: Annotated[
        list[int] | None, typer.Option("--node", help="Only this node; may be given again.", min=1)
    ] = None,
    segment_bytes: Annotated[
        int, typer.Option("--segment-bytes", help="Size of a segment.", min=1 << 16)
    ] = DiskSettings().segment_bytes,
    again: Annotated[
        bool,
        typer.Option(
            AGAIN,
            help="Of a cluster that was led: the disk votes once all voters have answered it; writes that only the "
            "lost disk had are lost.",
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option(FORCE, help="Ask no member: no acknowledged write is on any node of this cluster.")
    ] = False,
) -> None:
    """Make the data folders that a cluster file names, or that of the new node of a join file.

    Done once; a folder with something in it is never touched. Refused if a member answers that the cluster was ever
    led, or another data folder on this machine shows it: a disk that is lost is replaced with `raftlog members
    replace`, or made again with --again.
    """
    from raftlog.cluster.node.formatting import format_file, format_join

    if join is not None:
        if file is not None or nodes:
            raise CommandFailed("--join FILE goes without a cluster file and without --node", Exit.USAGE)
        if again:
            raise CommandFailed(f"{AGAIN} is for a cluster file: a join file is for a new disk", Exit.USAGE)
        if cli.discover:
            _take_addresses(cli, join)
        if not force:
            _ask_members(join, ())
        folders = [format_join(join, data, segment_bytes=segment_bytes)]
    elif file is None or data is not None:
        raise CommandFailed("name a cluster file, or a join file: --join FILE [--data FOLDER]", Exit.USAGE)
    else:
        if again and force:
            raise CommandFailed(f"{AGAIN} and {FORCE} contradict each other: give one of them", Exit.USAGE)
        if not force and not again:
            _ask_members(file, nodes or ())
        folders = format_file(file, segment_bytes=segment_bytes, nodes=nodes or (), is_forced=force, is_again=again)
    cli.printer.all([{"data": str(folder)} for folder in folders], FORMATTED)


def _take_addresses(cli: Cli, join: Path) -> None:
    """Writes the addresses that the members have now into a join file. DNS names nodes that know them. Raises
    CommandFailed: they are of another cluster; SettingsError and ClientError."""
    from raftlog.cluster.config.cluster_file import read_cluster, render_cluster_file
    from raftlog.cluster.node.first_format import files_beside
    from raftlog.cluster.runtime.file_errors import replace_file

    cluster = read_cluster(join)
    if files := files_beside(join, [cluster.cluster.join]):
        use_files(Profile([], files.ca, files.certificate, files.key))
    with cli.client(sessions=False) as client:
        found = client.members()
    if found.log != cluster.cluster.log:
        raise CommandFailed(
            f"the SRV records of {cli.discover} name no member of the cluster of {join}: they lead to log {found.log}, "
            f"and the file is of log {cluster.cluster.log}"
        )
    now = {each.node: each for each in found.members}
    nodes = [
        replace(each, peer=now[each.id].peer, url=now[each.id].url) if each.id in now else each for each in cluster.node
    ]
    replace_file(join, render_cluster_file(replace(cluster, node=nodes)).encode())


def _ask_members(file: Path, nodes: Sequence[int]) -> None:
    """Asks the members of a cluster file whether its log was ever led. Raises WasLed if so, and SettingsError."""
    from raftlog.cluster.config.cluster_file import read_cluster
    from raftlog.cluster.node.first_format import ask_members, files_beside, look_at_folders

    cluster = read_cluster(file)
    only = [cluster.cluster.join] if cluster.cluster.join else nodes
    look_at_folders(cluster, file, only)
    silent = ask_members(cluster, only, files_beside(file, only or [each.id for each in cluster.node]))
    if nodes and silent:
        reasons = "; ".join(f"node {node}: {reason}" for node, reason in silent.items())
        say(
            f"no member could say whether this cluster was led ({reasons}). A disk made so votes once all voters have "
            f"answered it: start them all. Of a new cluster some of whose nodes start later: {FORCE}"
        )
