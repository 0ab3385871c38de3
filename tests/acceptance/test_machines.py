"""A cluster on three machines, set up by hand with `raftlog format`: TLS, beyond loopback."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from raftlog import Forbidden, SyncClient, Unavailable
from raftlog.cluster.node.formatting import tls_files
from tests.acceptance.conftest import Measure
from tests.acceptance.machines import machines, run
from tests.support import RAFTLOG, raftlog, variables_of, wait_until


def _is_closed(client: SyncClient) -> bool:
    """Whether a node says that it serves nothing yet."""
    try:
        client.status()
    except Forbidden as error:
        return "raftlog access init" in str(error)
    except Unavailable:
        return False
    raise AssertionError("a node beyond loopback serves without access control")


@pytest.mark.timeout(180)
def test_three_machines_by_three_commands(tmp_path: Path, record_property: Measure) -> None:
    """`raftlog create`, then `format` and `node` on each machine, then the first admin on one of them. Before that no
    request is served. The operator's certificate writes, reads and survives a killed leader. A client without a
    certificate gets no answer. One whose user may only read gets the name of the missing grant."""
    nodes: list[subprocess.Popen[bytes]] = []
    with machines(record_property) as hosts:
        run("create", *hosts, "--folder", "made", cwd=tmp_path)
        tls = tmp_path / "made" / "tls"
        client_files = tls_files(tls, "client-operator")
        try:
            for number, there in enumerate(hosts.values(), 1):
                machine = tmp_path / "made" / f"machine-{number}"
                run("format", "cluster.toml", "--node", str(number), "--segment-bytes", "1048576", cwd=machine)
                with open(machine / "node.log", "wb") as log:
                    nodes.append(
                        subprocess.Popen(
                            [*there, *RAFTLOG, "node", "--config", "node.toml"], cwd=machine, stderr=log, stdout=log
                        )
                    )
            urls = [f"https://{host}:7001" for host in hosts]
            environment = {"RAFTLOG_ENDPOINTS": ",".join(urls), **variables_of(client_files)}
            with SyncClient(urls, tls=client_files, deadline_s=30) as client:
                wait_until(lambda: _is_closed(client), 30, what="a node that serves nothing")
                init = ("access", "init", "operator", "--config", "node.toml", "--deadline", "30")
                run(*init, cwd=tmp_path / "made" / "machine-1")
                for number in range(20):
                    client.put(b"key %d" % number, b"value")
                leader = client.status().leader
                assert leader is not None
                nodes[leader.node - 1].send_signal(signal.SIGKILL)
                nodes[leader.node - 1].wait(10)
                client.put(b"after", b"the kill")
                wait_until(lambda: client.get(b"after"), what="the write")
            assert "after" in run("get", "after", cwd=tmp_path, environment=environment)
            assert run("status", cwd=tmp_path, environment=environment).count("https://") == 3
            run("user", "set", "alice", "--role", "reader", cwd=tmp_path, environment=environment)
            run("cert", "client", "alice", "--folder", str(tls), cwd=tmp_path)
            own = environment | variables_of(tls_files(tls, "client-alice"))
            assert "after" in run("get", "after", cwd=tmp_path, environment=own)
            denied = raftlog("put", "after", "x", environment=own)
            assert (denied.returncode, "role grant ROLE 'write on keys:after'" in denied.stderr) == (9, True), (
                denied.stderr
            )
            bare = {name: "" for name in environment if name != "RAFTLOG_ENDPOINTS"}
            refused = raftlog("get", "after", environment=environment | bare)
            assert refused.returncode == 2
            assert "raftlog cert client" in refused.stderr
        finally:
            for node in nodes:
                node.terminate()
            for node in nodes:
                node.wait(20)
