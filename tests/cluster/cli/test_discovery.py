"""`--discover srv:NAME`: commands find their cluster by DNS, and each wrong record is one sentence.

raftlog.cluster.cli.frame.discovery, with a name server of the test on loopback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import dns.resolver
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from raftlog.cluster.api.encoding import to_b64
from raftlog.cluster.cli.commands import command_first
from raftlog.cluster.cli.frame import discovery
from raftlog.cluster.cli.frame.common import Exit
from raftlog.cluster.config.cluster_file import first_entry, read_cluster, render_cluster_file
from raftlog.cluster.node.formatting import new_cluster
from tests.cluster.cli.test_cli import Running
from tests.name_server import name_server
from tests.support import free_ports

NAME = "_raftlog._tcp.example.com"
Zone = Callable[[str | None], None]


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Zone]:
    """Makes a name server with these lines the one that this process asks; None: a silent one."""
    with ExitStack() as ends:

        def use(lines: str | None) -> None:
            resolver = dns.resolver.Resolver(configure=False)
            resolver.nameservers, resolver.port = ["127.0.0.1"], ends.enter_context(name_server(lines))
            monkeypatch.setattr(dns.resolver, "default_resolver", resolver)

        yield use


def srv(*places: str) -> str:
    """SRV records of NAME, as `PRIORITY PORT TARGET`."""
    return "\n".join("{}. SRV {} 0 {} {}".format(NAME, *place.split()) for place in places)


def test_a_command_asks_the_first_server_that_dns_names(cli: Running, zone: Zone) -> None:
    """The lowest priority comes first; behind the flag, before the command, and in RAFTLOG_ENDPOINTS."""
    port = cli.url.rpartition(":")[2]
    zone(srv(f"2 {free_ports(1)[0]} localhost.", f"1 {port} localhost."))
    for words in (["put", "a", "1", "--discover", f"srv:{NAME}"], ["--discover", f"srv:{NAME}", "get", "a"]):
        done = CliRunner().invoke(cli.app, command_first(words))
        assert done.exit_code == 0, done.output
    assert CliRunner().invoke(cli.app, ["put", "a", "1"], env={"RAFTLOG_ENDPOINTS": f"srv:{NAME}"}).exit_code == 0


def test_the_url_is_https_where_an_authority_is_named(zone: Zone, monkeypatch: pytest.MonkeyPatch) -> None:
    """RAFTLOG_CA decides: no record can lead a client with certificates to a server without TLS."""
    zone(srv("2 7002 n2.example.com.", "1 7001 n1.example.com."))
    monkeypatch.setenv("RAFTLOG_CA", "")
    assert discovery.discovered(f"srv:{NAME}") == ("http://n1.example.com:7001", "http://n2.example.com:7002")
    monkeypatch.setenv("RAFTLOG_CA", "ca.pem")
    assert discovery.discovered(f"srv:{NAME}")[0] == "https://n1.example.com:7001"


@pytest.mark.parametrize(
    ("lines", "name", "code", "sentence"),
    [
        ("", NAME, Exit.UNREACHABLE, f"DNS has no name {NAME}: add its SRV records, or correct the name"),
        ("example.com. A 127.0.0.1", "example.com", Exit.UNREACHABLE, "example.com has no SRV records: add one for"),
        (srv("0 0 ."), NAME, Exit.UNREACHABLE, "says that there is no server: add one for each node"),
        (None, NAME, Exit.UNREACHABLE, "no name server answered within 0.2 s"),
        ("", "a..b", Exit.USAGE, "'a..b' is no DNS name: write srv:NAME, as srv:_raftlog._tcp.example.com"),
        ("", "", Exit.USAGE, "'' is no DNS name: write srv:NAME, as srv:_raftlog._tcp.example.com"),
    ],
)
def test_a_name_that_leads_nowhere_is_one_sentence(
    lines: str | None, name: str, code: Exit, sentence: str, cli: Running, zone: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not found, no such records, no server, silence (bounded), no name: each says what to do."""
    monkeypatch.setattr(discovery, "RESOLVE_S", 0.2 if lines is None else 5.0)
    zone(lines)
    done = CliRunner().invoke(cli.app, ["get", "a", "--discover", f"srv:{name}"])
    assert done.exit_code == code
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"raftlog: srv:{name}: ")
    assert sentence in line


def test_records_that_name_no_member_say_so(cli: Running, zone: Zone) -> None:
    """No process listens where they lead."""
    port = free_ports(1)[0]
    zone(srv(f"0 {port} localhost."))
    done = CliRunner().invoke(cli.app, ["get", "a", "--discover", f"srv:{NAME}"])
    assert done.exit_code == Exit.UNREACHABLE
    assert f"http://localhost:{port}" in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"The SRV records of {NAME} name no member that answers: correct")


def join_file(folder: Path, log: str) -> Path:
    """Of node 2 of a cluster whose node 1 was elsewhere when the file was written."""
    made = new_cluster(2, peer_ports=[11, 12], http_ports=[13, 14])
    first = first_entry(made)
    head = replace(made.cluster, log=log, join=2, first=to_b64(first.header + first.data))
    file = folder / "join-2.toml"
    file.write_text(render_cluster_file(replace(made, cluster=head)), encoding="utf-8")
    return file


def test_a_join_takes_the_addresses_of_its_peers_from_the_nodes_that_dns_names(
    cli: Running, zone: Zone, tmp_path: Path
) -> None:
    """A join file that is older than a change of addresses gets those of today. Nothing is made of one whose cluster
    is another one."""
    zone(srv(f"0 {cli.url.rpartition(':')[2]} localhost."))
    members = cli.json("members", "list")
    file = join_file(tmp_path, members["log"])
    done = CliRunner().invoke(cli.app, ["format", "--join", str(file), "--discover", f"srv:{NAME}"])
    assert done.exit_code == 0, done.output
    (first,) = (each for each in members["members"] if each["node"] == 1)
    own = read_cluster(file).of(1)
    assert own is not None
    assert (own.peer, own.url) == (first["peer"], first["url"])
    assert (tmp_path / "node-2").is_dir()
    other = join_file(tmp_path, "f" * 32)
    (tmp_path / "node-2").rename(tmp_path / "away")
    refused = CliRunner().invoke(cli.app, ["format", "--join", str(other), "--discover", f"srv:{NAME}"])
    assert refused.exit_code == Exit.FAILURE
    assert f"name no member of the cluster of {other}: they lead to log {members['log']}" in refused.stderr
    assert not (tmp_path / "node-2").exists()
