"""The same harness against a real etcd, and the small parts that lead it there."""

from __future__ import annotations

import re
import urllib.error
from email.message import Message
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from raftlog.chaos.commands import check
from raftlog.chaos.deploy.toxiproxy import Toxiproxy
from raftlog.chaos.etcd import cluster
from raftlog.chaos.etcd.cluster import EtcdCluster, EtcdProxies, status_of
from raftlog.chaos.etcd.router import rewritten

app = typer.Typer()
check.register(app)


class Listed(Toxiproxy):
    """Records its calls."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []

    def add_toxic(  # type: ignore[override]
        self, proxy: str, name: str, kind: str, stream: str, attributes: dict[str, int] | None = None
    ) -> None:
        """Records the call."""
        self.told.append((proxy, name, stream))

    def remove_toxic(self, proxy: str, name: str) -> None:
        """Records the call."""
        self.told.append((proxy, name))


def test_a_request_goes_to_the_proxy_of_its_address() -> None:
    """The address of the request says which peer it is for; its connection then carries nothing else."""
    head = b"GET http://192.0.2.2:2380/raft/stream/x?y=1 HTTP/1.1\r\nHost: 192.0.2.2:2380\r\n"
    head += b"Connection: keep-alive\r\n\r\n"
    assert rewritten(head) == (
        "192.0.2.2:2380",
        b"GET /raft/stream/x?y=1 HTTP/1.1\r\nConnection: close\r\nHost: 192.0.2.2:2380\r\n\r\n",
    )
    with pytest.raises(ValueError):
        rewritten(b"GET\r\n\r\n")


def test_a_cut_of_one_direction_is_on_both_connections() -> None:
    """What member 1 sends to member 2 travels forth on its own connection and back on that of member 2; a client's
    proxy has only one."""
    real = Listed()
    proxies = EtcdProxies(real)
    proxies.add_toxic("peer-1-2", "f1", "timeout", "upstream", {"timeout": 0})
    proxies.add_toxic("client-2", "f2", "timeout", "downstream")
    proxies.remove_toxic("peer-1-2", "f1")
    assert real.told == [
        ("peer-1-2", "f1", "upstream"), ("peer-2-1", "f1-back", "downstream"), ("client-2", "f2", "downstream"),
        ("peer-1-2", "f1"), ("peer-2-1", "f1-back"),
    ]  # fmt: skip


def test_the_etcd_leader_is_read_from_the_status() -> None:
    """The member whose own id is that of the leader; none without a leader."""
    told = {"header": {"member_id": "7", "revision": "12"}, "leader": "7", "raftTerm": "3", "raftIndex": "40"}
    assert status_of(2, told).role == "leader"
    assert (status_of(2, told).term, status_of(2, told).revision) == (3, 12)
    del told["leader"]
    assert status_of(2, told).role == "follower"


@pytest.mark.parametrize("old", [False, True])
def test_keys_are_hashed_where_each_version_does_so(monkeypatch: pytest.MonkeyPatch, old: bool) -> None:
    """HashKV has a path of its own since 3.5; where there is none, up to 3.4, it has that of Hash."""
    asked: list[str] = []

    def ask(self: EtcdCluster, node: int, path: str, body: dict[str, int]) -> dict[str, int]:
        asked.append(path)
        if old and path.endswith("kv"):
            raise urllib.error.HTTPError(path, 404, "Not Found", Message(), None)
        return body

    monkeypatch.setattr(EtcdCluster, "ask", ask)
    assert EtcdCluster.hash(EtcdCluster.__new__(EtcdCluster), 1, 7) == {"revision": 7}
    assert asked == ["/v3/maintenance/hashkv", "/v3/maintenance/hash"][: 1 + old]


def test_a_file_that_cannot_run_is_no_etcd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a binary lies its checksum; of two binaries the newest is taken."""
    monkeypatch.setattr(cluster, "_TOOLS", tmp_path)
    for name, mode in (("etcd-3.7.2", 0o755), ("etcd-3.7.3", 0o755), ("etcd-3.7.3.sum", 0o644)):
        (tmp_path / name).touch(mode)
    (tmp_path / "etcd-build").mkdir()
    assert cluster.etcd_path() == tmp_path / "etcd-3.7.3"


@pytest.mark.toxiproxy
def test_a_run_without_etcd_is_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toxiproxy_path: Path
) -> None:
    """Exit code 8, and how to get one; no folder is made."""
    monkeypatch.setattr(cluster, "_TOOLS", tmp_path)
    monkeypatch.setenv("PATH", str(toxiproxy_path.parent))
    result = CliRunner().invoke(app, ["chaos", "run", "etcd", "--out", str(tmp_path / "out")])
    assert result.exit_code == 8
    assert "skipped: there is no etcd" in re.sub(r"\s+", " ", result.output)
    assert not (tmp_path / "out").exists()


@pytest.mark.long
@pytest.mark.serial
@pytest.mark.toxiproxy
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("scenario", "codes"), [("etcd", (0,)), ("etcd-stale", (1,))])
def test_etcd_calibrates_the_harness(
    tmp_path: Path, toxiproxy_path: Path, scenario: str, codes: tuple[int, ...]
) -> None:
    """An etcd that is used as it should be is valid, and one that answers reads from any member is invalid, in at most
    three runs: a run in which too little happened says nothing."""
    try:
        cluster.etcd_path()
    except cluster.EtcdNotFoundError as error:
        pytest.skip(str(error))
    for seed in range(1, 4):
        words = [
            "chaos",
            "run",
            scenario,
            "--nodes",
            "3",
            "--seconds",
            "30",
            "--seed",
            str(seed),
            "--out",
            str(tmp_path),
        ]
        result = CliRunner().invoke(app, words)
        if result.exit_code in codes:
            return
        assert (scenario, result.exit_code) != ("etcd", 1), result.output
        assert result.exit_code in (0, 6), result.output
    pytest.fail(f"no run of {scenario} ended with {codes}")
