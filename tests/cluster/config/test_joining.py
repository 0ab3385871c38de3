"""The settings of a node that joins: those of the cluster, none of the node that answers."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest

from raftlog.cluster.config.cluster_file import ClusterFile, ClusterHead, ClusterNode, render_cluster_file
from raftlog.cluster.config.joining import joining_lines, steps_to_join
from raftlog.cluster.config.security_settings import SecuritySettings
from raftlog.cluster.config.settings import (
    DiskSettings,
    HttpSettings,
    LimitSettings,
    LogSettings,
    PeerSettings,
    RetentionSettings,
    Settings,
    load_settings,
)

OWN = Settings(
    node=1,
    cluster_file="/etc/cluster.toml",
    data="/srv/one",
    stop_with_stdin=True,
    http=HttpSettings("127.0.0.1:7001", ["cluster.example"], probe_listen="127.0.0.1:7201"),
    peer=PeerSettings("127.0.0.1:7101"),
    dial={2: "proxy:1"},
    limits=LimitSettings(records_max=10),
    disk=DiskSettings(segment_bytes=1 << 20),
    retention=RetentionSettings(bytes=1 << 30),
    log=LogSettings("debug", file="one.log", audit_file="audit.log"),
    security=SecuritySettings(
        "etc/ca.pem", "etc/one.pem", "etc/one.key", client_certificates="optional", revoked="tls/revoked"
    ),
)


def test_a_new_node_takes_over_what_the_cluster_has_and_nothing_of_one_node() -> None:
    """Limits, retention, access and further hosts; its own number and certificate; no address, folder or log file."""
    lines = joining_lines(OWN, 4, "127.0.0.1:7104", "https://127.0.0.1:7004")
    assert tomllib.loads("\n".join(lines)) == {
        "node": 4,
        "security": {
            "ca": "tls/ca.pem",
            "certificate": "tls/node-4.pem",
            "key": "tls/node-4.key",
            "client_certificates": "optional",
            "revoked": "tls/revoked",
        },
        "http": {"hosts": ["cluster.example"]},
        "limits": {"records_max": 10},
        "disk": {"segment_bytes": 1 << 20},
        "retention": {"bytes": 1 << 30},
        "log": {"level": "debug"},
    }
    assert joining_lines(Settings(), 4, "h:1", "http://h:2") == ["node = 4"]


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_a_new_node_listens_on_all_interfaces_if_the_cluster_does(host: str) -> None:
    """At the ports of its own addresses, also where its URL names none."""
    http = HttpSettings(f"{host}:7001", probe_listen=f"{host}:7201")
    own = msgspec.structs.replace(OWN, http=http, peer=PeerSettings(f"{host}:7101"))
    lines = joining_lines(own, 4, "four:9", "https://four")
    wanted = {f'http.listen = "{host}:443"', f'http.probe_listen = "{host}:7201"', f'peer.listen = "{host}:9"'}
    assert wanted < set(lines)


def test_the_settings_of_a_new_node_are_read_with_its_join_file(tmp_path: Path) -> None:
    """By the lines that `members add` writes: every key is one, and TLS is on."""
    place = ClusterNode(4, "10.0.0.4:7101", "https://10.0.0.4:7001", "node-4", "b" * 32)
    (tmp_path / "join-4.toml").write_text(render_cluster_file(ClusterFile(ClusterHead("a" * 32), [place])), "utf-8")
    file = tmp_path / "join-4-node.toml"
    lines = joining_lines(OWN, 4, place.peer, place.url)
    file.write_text("\n".join(['cluster_file = "join-4.toml"', *lines]), "utf-8")
    loaded = load_settings(file)
    assert (loaded.settings.http.listen, loaded.settings.limits.records_max) == ("10.0.0.4:7001", 10)
    files = loaded.tls_files()
    assert files is not None
    assert files.key == str(tmp_path / "tls" / "node-4.key")


def test_the_steps_of_a_new_node_name_its_certificate_only_where_it_needs_one() -> None:
    """In the order in which they work: certificate, folder, start, vote."""
    plain = steps_to_join(4, Path("join-4.toml"), "node-4", " -e URL")
    assert [line.split("   #")[0] for line in plain.splitlines() if line.startswith("  ")] == [
        "  raftlog format --join join-4.toml --data node-4",
        "  raftlog node --config join-4-node.toml",
        "  raftlog members promote 4 -e URL",
    ]
    told = steps_to_join(4, Path("join-4.toml"), "node-4", certificate="raftlog cert node 4 --cluster join-4.toml")
    assert told.index("raftlog cert node 4") < told.index("tls/ with ca.pem, node-4.pem") < told.index("format --join")
