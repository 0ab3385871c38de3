"""Tests settings: four sources in order, origins, and refusals that name place, fault and fix."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from raftlog.cluster.config.bounds import DERIVED
from raftlog.cluster.config.cluster_file import SettingsError, parse_cluster_file, render_cluster_file
from raftlog.cluster.config.settings import LimitSettings, Settings, load_settings, setting_types
from raftlog.cluster.node.formatting import new_cluster
from raftlog.raft.options import Options


def write(folder: Path, text: str) -> Path:
    """A settings file with that text."""
    file = folder / "node.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_later_sources_win_and_every_value_names_its_origin(tmp_path: Path) -> None:
    """Flag over environment over file over default, and `settings show --origin` can say so for each key."""
    file = write(
        tmp_path, "raft.heartbeat_ms = 50\n[limits]\nvalue_bytes_max = 5\nrecords_max = 6\n[dial]\n2 = '127.0.0.1:9'\n"
    )
    environment = {
        "RAFTLOG_LIMITS_VALUE_BYTES_MAX": "7",
        "RAFTLOG_LIMITS_RECORDS_MAX": "8",
        "RAFTLOG_DIAL_3": "127.0.0.1:8",
    }
    loaded = load_settings(file, environment, {"limits.records_max": 9})
    settings = loaded.settings
    assert (settings.raft.heartbeat_ms, settings.limits.value_bytes_max, settings.limits.records_max) == (50, 7, 9)
    assert settings.dial == {2: "127.0.0.1:9", 3: "127.0.0.1:8"}
    origins = {each.key: each.origin for each in loaded.origins}
    assert origins["raft.heartbeat_ms"] == origins["dial.2"] == str(file)
    assert origins["limits.value_bytes_max"] == "RAFTLOG_LIMITS_VALUE_BYTES_MAX"
    assert origins["limits.records_max"] == "flag --limits.records_max"
    assert origins["limits.body_bytes_max"] == "default"


def test_bounds_follow_the_memory_and_the_connections(tmp_path: Path) -> None:
    """Half the memory halves each share of it, and only those. The defaults are the shares of the default."""
    plain = load_settings()
    small = load_settings(write(tmp_path, f"limits.memory_bytes = {plain.settings.limits.memory_bytes // 2}"))
    was = {each.key: each for each in plain.origins}
    assert {each.key for each in small.origins if each.value != was[each.key].value} == {
        "limits.memory_bytes",
        *(key for key, (source, _) in DERIVED.items() if source == "limits.memory_bytes"),
    }
    assert small.settings.limits.bodies_bytes_max * 2 == LimitSettings().bodies_bytes_max
    assert small.settings.options().tail_bytes_max * 2 == Options().tail_bytes_max
    assert plain.settings == Settings()
    assert was["limits.bodies_bytes_max"].origin == "limits.memory_bytes / 8"
    assert was["limits.hello_bytes_max"].origin == "fixed"
    assert len(setting_types()) <= 71


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("limits.record_max = 3", "node.toml: limits.record_max is no setting; did you mean limits.records_max?"),
        (
            "trace.endpoint = 'collector:4318'",
            "trace.endpoint is 'collector:4318': write the whole URL of a receiver, without user and password, as in "
            "http://127.0.0.1:4318/v1/traces",
        ),
        (
            "trace.endpoint = 'http://a:b@collector:4318/v1/traces'",
            "write the whole URL of a receiver, without user and",
        ),
        ("trace.every = -1", "trace.every is -1: it is 0 (none) or more"),
        ("nod = 3", "node.toml: nod is no setting; did you mean node?"),
        (
            "limits.waiters_max = 3",
            "node.toml: limits.waiters_max is no setting; it follows from limits.connections_max * 4: set "
            "limits.connections_max",
        ),
        (
            "raft.append_entries_max = 3",
            "node.toml: raft.append_entries_max is no setting; it is always 4096: delete it",
        ),
        ("limits.records_max = 'x'", "limits.records_max is 'x'"),
        ("limits.records_max = 0", "it must be at least 1"),
        ("limits.memory_bytes = 5", "limits.memory_bytes is 5: it must be at least 134217728"),
        ("scrub.bytes_per_second = -1", "scrub.bytes_per_second is -1, pause_ms 3600000: the first is 0 (off) or more"),
        ("scrub.pause_ms = 0", "the second at least 1"),
        ("scrub.pause_ms = 1000000000001", "scrub.pause_ms is 1000000000001: it must be at most 1000000000000"),
        ("retention.bytes = 9007199254740993", "it must be at most 9007199254740992"),
        ("raft.heartbeat_ms = 200", "raft.heartbeat_ms (200) must be at most half"),
        ("http.listen = '0.0.0.0:80'", "beyond loopback a node needs TLS; set security.ca"),
        ("peer.listen = '10.0.0.1:80'", "beyond loopback"),
        ("http.listen = '10.0.0.1:80'\nsecurity.insecure = false", "--insecure takes no notice"),
        (
            "http.listen = '10.0.0.1:80'\nsecurity = {ca='a', certificate='b', key='c', mode='both'}",
            "every machine could connect without TLS. Leave security.mode out",
        ),
        ("security.mode = 'both'", "are for a node with TLS: set security.ca too"),
        ("security.jwt_keys = 'http://issuer/keys'", "neither a file nor an https URL"),
        ("security.jwt_keys = 'keys.json'", "needs security.jwt_issuer and security.jwt_audience"),
        ("http.probe_listen = '7201'", "http.probe_listen is '7201': it must be host:port"),
        ("http.probe_listen = 'a:1'\nhttp.listen = 'a:1'", "http.probe_listen is a:1, and so is http.listen: probes"),
        (
            "http.probe_listen = 'a:1'\npeer.listen = 'a:1'",
            "and so is peer.listen: probes need an address of",
        ),
        ("peer.listen = 'nowhere'", "it must be host:port"),
        ("security.key = 'k'", "TLS needs three files: security.ca and security.certificate not set"),
        ("security.tls_min = '1.1'", "invalid enum value '1.1'"),
        ("dial.x = '127.0.0.1:1'", "what follows dial is a node id"),
        ("= 3", "node.toml: "),
        ("cluster_file = 'no.toml'", "no.toml"),
    ],
)
def test_invalid_settings_are_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    """A typo, a wrong type, a bound, an address beyond loopback: the message names file, key and fix."""
    with pytest.raises(SettingsError) as refused:
        load_settings(write(tmp_path, text))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "http.listen = '10.0.0.1:80'\nsecurity.insecure = true",
        "http.listen = '10.0.0.1:80'\nsecurity = {ca='a', certificate='b', key='c'}",
        "http.listen = '10.0.0.1:80'\nsecurity = {ca='a', certificate='b', key='c', mode='both', insecure=true}",
    ],
)
def test_a_node_listens_beyond_loopback_with_tls_or_insecure_spelled_out(tmp_path: Path, text: str) -> None:
    """The only ways. Such a node knows that other machines reach it."""
    assert load_settings(write(tmp_path, text)).settings.is_exposed


def test_a_near_miss_in_the_environment_is_refused(tmp_path: Path) -> None:
    """A mistyped variable would silently do nothing; other programs' variables with our prefix are none of ours."""
    with pytest.raises(SettingsError, match="did you mean RAFTLOG_LIMITS_RECORDS_MAX"):
        load_settings(None, {"RAFTLOG_LIMITS_RECORD_MAX": "3"})
    load_settings(None, {"RAFTLOG_SKIPS_FILE": "x"})


def test_a_cluster_file_gives_addresses_and_the_data_folder(tmp_path: Path) -> None:
    """With `cluster_file` and `node` nothing else is needed; a node that the file does not name is refused. A byte
    order mark at the begin of a file has no meaning."""
    cluster = new_cluster(2, peer_ports=[7001, 7002], http_ports=[8001, 8002], parameters={"sessions_max": 5})
    file = tmp_path / "cluster.toml"
    file.write_text(render_cluster_file(cluster), encoding="utf-8-sig")
    assert parse_cluster_file(file.read_text(encoding="utf-8-sig"), "f") == cluster
    for loaded in (
        load_settings(file, {}, {"node": 2}),
        load_settings(write(tmp_path, "node = 2\ncluster_file = 'cluster.toml'\n")),
    ):
        assert loaded.settings.peer.listen == "127.0.0.1:7002"
        assert loaded.settings.http.listen == "127.0.0.1:8002"
        assert loaded.data == tmp_path / "node-2"
        assert cluster.configuration().parameters == (("sessions_max", 5),)
    with pytest.raises(SettingsError, match="has the nodes 1, 2"):
        load_settings(file, {}, {"node": 3})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("version = 1", "version = 2", "this raftlog knows 1"),
        ("id = 2", "id = 1", "have the same id 1"),
        ("node-2", "node-1", "have the same data"),
        ("http://127.0.0.1:8002", "127.0.0.1:8002", "it must begin with http://"),
        ("127.0.0.1:7002", "7002", "it must be host:port"),
        ("127.0.0.1:7002", "127.0.0.1:0", "it must be host:port"),
        ("127.0.0.1:7002", " 127.0.0.1:7002", "it must be host:port"),
        ("127.0.0.1:7002", "[::1:7002", "it must be host:port"),
        ("127.0.0.1:7002", "127.0.0.1:8001", "have the same address '127.0.0.1:8001'"),
        ("127.0.0.1:7002", "127.0.0.1:8002", "have the same address '127.0.0.1:8002'"),
        ("b" * 32, "a" * 32, f"have the same incarnation '{'a' * 32}'"),
        ("log = ", "lag = ", "lag"),
        ("sessions_max = 5", "session_max = 5", "cluster.parameters.session_max is not known"),
        ("sessions_max = 5", "session_ttl_min_ms = 1000000000", "cluster.parameters: "),
        ("sessions_max = 5", "sessions_max = 0", "it must be at least 1"),
    ],
)
def test_a_broken_cluster_file_is_refused_by_name(old: str, new: str, said: str) -> None:
    """Each thing that two nodes could disagree about is checked before anything is made from the file."""
    cluster = new_cluster(2, peer_ports=[7001, 7002], http_ports=[8001, 8002], parameters={"sessions_max": 5})
    named = [replace(node, incarnation=digit * 32) for node, digit in zip(cluster.node, "ab", strict=True)]
    text = render_cluster_file(replace(cluster, node=named))
    assert old in text
    with pytest.raises(SettingsError) as refused:
        parse_cluster_file(text.replace(old, new), "cluster.toml")
    assert said in str(refused.value)
    assert "cluster.toml" in str(refused.value)
