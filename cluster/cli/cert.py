"""Defines `raftlog cert`: makes the certificates of a cluster, lists them, and checks that three files fit together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from raftlog.cluster.api.text import counted
from raftlog.cluster.cli.frame.common import Cli, CommandFailed, Commands, Exit, say
from raftlog.cluster.cli.frame.output import view
from raftlog.cluster.runtime.file_errors import replace_file

commands = Commands()
register = commands.register
cert = commands.group("cert")

FOLDER: Final = Path("tls")
WARN_DAYS: Final = 30.0  # `check` says from here on that a certificate must be renewed

MADE: Final = view("certificate", "key", raw="certificate")
LISTED: Final = view("file", "holder", "names", "issuer", "expires", "days", raw="file")

FolderOption = Annotated[Path, typer.Option("--folder", help="Where the files are.")]
DaysOption = Annotated[int | None, typer.Option("--days", help="How long it counts.", min=1)]
ClusterFileOption = Annotated[Path, typer.Option("--cluster", help="The cluster file: it names the log and the nodes.")]


@cert("ca")
def _ca(
    cli: Cli,
    name: Annotated[str, typer.Option("--name", help="The name of the authority.")] = "raftlog CA",
    folder: FolderOption = FOLDER,
    days: DaysOption = None,
) -> None:
    """Make the authority of a cluster: ca.pem for every node and client, ca.key to keep in a safe place."""
    from raftlog.cluster.security.authority import CA_DAYS, make_authority

    _show(cli, make_authority(folder, name, days or CA_DAYS))


@cert("node")
def _node(
    cli: Cli,
    nodes: Annotated[list[int], typer.Argument(help="Ids of nodes.", min=1)],
    cluster: ClusterFileOption = Path("cluster.toml"),
    names: Annotated[
        list[str] | None, typer.Option("--also", help="One more host name or address of the node; may be repeated.")
    ] = None,
    folder: FolderOption = FOLDER,
    days: DaysOption = None,
) -> None:
    """Make the certificates of nodes, for the hosts that the cluster file names."""
    from raftlog.cluster.config.cluster_file import read_cluster
    from raftlog.cluster.node.formatting import hosts_of
    from raftlog.cluster.security.authority import HOLDER_DAYS, make_node

    known = read_cluster(cluster)
    for node in nodes:
        place = known.of(node)
        if place is None:
            ids = ", ".join(str(each.id) for each in known.node)
            raise CommandFailed(f"node {node} is not in the cluster file, which has the nodes {ids}", Exit.USAGE)
        hosts = [*hosts_of(place), *(names or ())]
        _show(cli, make_node(folder, known.cluster.log, node, hosts, days or HOLDER_DAYS))


@cert("client")
def _client(
    cli: Cli,
    name: Annotated[str, typer.Argument(help="The name of the client: a user or a program.")],
    cluster: Annotated[
        Path | None, typer.Option("--cluster", help="Count for this cluster alone, not for all of the authority.")
    ] = None,
    folder: FolderOption = FOLDER,
    days: DaysOption = None,
) -> None:
    """Make the certificate of a client. It may do everything that the HTTP API offers."""
    from raftlog.cluster.config.cluster_file import read_cluster
    from raftlog.cluster.security.authority import HOLDER_DAYS, make_client

    log = "" if cluster is None else read_cluster(cluster).cluster.log
    _show(cli, make_client(folder, name, log, days or HOLDER_DAYS))


@cert("renew")
def _renew(
    cli: Cli,
    certificates: Annotated[list[Path], typer.Argument(help="Certificates that this authority has signed.")],
    names: Annotated[
        list[str] | None, typer.Option("--also", help="One more host name or address; may be repeated.")
    ] = None,
    folder: Annotated[Path, typer.Option("--folder", help="Where the authority's ca.pem and ca.key are.")] = FOLDER,
    days: DaysOption = None,
) -> None:
    """Put new certificates in the place of these: for the same holder, hosts and key, so that the key stays as it is.

    A running node takes the new file within a second.
    """
    from raftlog.cluster.security.authority import HOLDER_DAYS, renew

    rows = [_row(renew(each, folder, names or (), days or HOLDER_DAYS)) for each in certificates]
    cli.printer.all(rows, LISTED)


@cert("revoke")
def _revoke(
    cli: Cli,
    certificates: Annotated[list[Path], typer.Argument(help="Certificates that shall count no more.")],
    revoked: Annotated[Path, typer.Option("--list", help="The list that security.revoked of every node names.")] = (
        FOLDER / "revoked"
    ),
) -> None:
    """Add certificates to the list of revoked ones. Copy the list to every node: it counts within a second."""
    from raftlog.cluster.security.authority import read_facts

    found = [read_facts(path) for path in certificates]
    _add(revoked, found)
    cli.printer.all([_row(facts) for facts in found], LISTED)


def _add(revoked: Path, certificates: list[Any]) -> None:
    """Adds lines to the list, as text that was read as a node will read it. Raises CommandFailed, OSError."""
    from raftlog.cluster.security.revoked import parse_revoked

    try:
        before = revoked.read_bytes() if revoked.exists() else b""
        added = "" if not before or before.endswith(b"\n") else "\n"  # an editor may have left the last line open
        for facts in certificates:
            holder = "".join(each if each.isprintable() else "?" for each in facts.holder)  # one line
            added += f"sha256:{facts.fingerprint}  # {holder}, until {facts.not_after:%Y-%m-%d}\n"
        text = before.decode() + added
        digests = parse_revoked(text).digests
    except ValueError as error:
        raise CommandFailed(
            f"{revoked}: {error}; nothing was revoked: nodes could not read this list. Correct it, or name another one "
            "with --list"
        ) from error
    assert digests >= {bytes.fromhex(facts.fingerprint) for facts in certificates}
    replace_file(revoked.resolve(), text.encode())  # whole: of half a line on a full disk no node reads the list


@cert("list")
def _list(cli: Cli, folder: FolderOption = FOLDER) -> None:
    """List the certificates of a folder."""
    from raftlog.cluster.security.authority import read_facts

    files = sorted(folder.glob("*.pem"))
    if not files:
        raise CommandFailed(
            f"{folder}: no certificate (*.pem) is there; --folder names another place. Only a cluster without an "
            "authority gets a new one (raftlog cert ca): nodes refuse the certificates of a second one",
            Exit.NOT_FOUND,
        )
    cli.printer.all([_row(read_facts(each)) for each in files], LISTED)


@cert("check")
def _check(
    cli: Cli,
    certificate: Annotated[Path, typer.Argument(help="A certificate; its key is the file beside it with .key.")],
    ca: Annotated[Path | None, typer.Option("--ca", help="The authorities. [default: ca.pem beside it]")] = None,
    key: Annotated[Path | None, typer.Option("--key", help="The key. [default: the same name with .key]")] = None,
) -> None:
    """Check that an authority, a certificate and a key fit together, and that the certificate counts now.

    Exit code 1 if they do not.
    """
    from raftlog.cluster.security.authority import check_files, read_facts

    wrong = check_files(ca or certificate.with_name("ca.pem"), certificate, key or certificate.with_suffix(".key"))
    if wrong:
        raise CommandFailed("\n".join(wrong))
    facts = read_facts(certificate)
    cli.printer.all([_row(facts)], LISTED)
    if facts.days_left() < WARN_DAYS:
        say(f"{certificate}: it expires in {counted(round(facts.days_left()), 'day')}: renew it (raftlog cert renew)")


def _show(cli: Cli, made: Any) -> None:
    cli.printer.all([{"certificate": str(made.certificate), "key": str(made.key)}], MADE)


def _row(facts: Any) -> dict[str, Any]:
    return {
        "file": str(facts.path),
        "holder": facts.holder,
        "names": ", ".join(facts.names),
        "issuer": facts.issuer,
        "expires": f"{facts.not_after:%Y-%m-%d %H:%M} UTC",
        "days": int(facts.days_left()),
    }
