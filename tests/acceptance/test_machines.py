"""A cluster on three machines, set up by hand with the commands of docs/security.md: TLS, beyond loopback.

The machines are network namespaces with addresses of their own. Where the system allows none, they are three loopback
addresses; the test says so in its output.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog import Forbidden, SyncClient, TlsFiles, Unavailable
from tests.acceptance.conftest import Measure
from tests.support import wait_until

RAFTLOG = (sys.executable, "-m", "raftlog.cluster.cli.main")
IP = shutil.which("ip")


def ip(*words: str) -> None:
    """Runs a command of iproute2. Raises CalledProcessError."""
    assert IP is not None
    subprocess.run([IP, *words], check=True, capture_output=True, timeout=20)


@contextlib.contextmanager
def machines(record_property: Measure) -> Iterator[dict[str, tuple[str, ...]]]:
    """Three addresses, each with the words that run a command on its machine."""
    own = f"rl{os.getpid() % 100_000}"
    subnet = f"10.{100 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
    with contextlib.ExitStack() as ends:
        try:
            if IP is None:
                raise OSError("no command ip")
            ip("link", "add", f"{own}b", "type", "bridge")
            ends.callback(ip, "link", "del", f"{own}b")
            ip("addr", "add", f"{subnet}.100/24", "dev", f"{own}b")
            ip("link", "set", f"{own}b", "up")
            found: dict[str, tuple[str, ...]] = {}
            for number in (1, 2, 3):
                name = f"{own}n{number}"
                ip("netns", "add", name)
                ends.callback(ip, "netns", "del", name)  # its link goes with it
                ip("link", "add", f"{own}v{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
                ip("link", "set", f"{own}v{number}", "master", f"{own}b", "up")
                for words in (
                    ("addr", "add", f"{subnet}.{number}/24", "dev", "eth0"),
                    ("link", "set", "eth0", "up"),
                    ("link", "set", "lo", "up"),
                ):
                    ip("netns", "exec", name, IP, *words)
                found[f"{subnet}.{number}"] = (IP, "netns", "exec", name)
        except (OSError, subprocess.SubprocessError) as error:
            ends.close()
            record_property("measured", f"no network namespaces ({error}): three loopback addresses instead")
            found = {f"127.0.0.{number}": () for number in (11, 12, 13)}
        yield found


def run(*words: str, cwd: Path, environment: dict[str, str] | None = None) -> str:
    """What a command prints. Raises CalledProcessError."""
    done = subprocess.run(
        [*RAFTLOG, *words], cwd=cwd, env={**os.environ, **(environment or {})}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
    return done.stdout


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
        client_files = TlsFiles(str(tls / "ca.pem"), str(tls / "client-operator.pem"), str(tls / "client-operator.key"))
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
            environment = {
                "RAFTLOG_ENDPOINTS": ",".join(urls),
                "RAFTLOG_CA": client_files.ca,
                "RAFTLOG_CERTIFICATE": client_files.certificate,
                "RAFTLOG_KEY": client_files.key,
            }
            with SyncClient(urls, tls=client_files, deadline_s=30) as client:
                wait_until(lambda: _is_closed(client), 30, what="a node that serves nothing")
                run(
                    "access", "init", "operator", "--config", "node.toml", "--deadline", "30",
                    cwd=tmp_path / "made" / "machine-1",
                )  # fmt: skip
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
            own = {
                "RAFTLOG_CERTIFICATE": str(tls / "client-alice.pem"), "RAFTLOG_KEY": str(tls / "client-alice.key"),
            }  # fmt: skip
            assert "after" in run("get", "after", cwd=tmp_path, environment=environment | own)
            denied = subprocess.run(
                [*RAFTLOG, "put", "after", "x"], env={**os.environ, **environment, **own}, capture_output=True,
                text=True, timeout=30, check=False,
            )  # fmt: skip
            assert (denied.returncode, "user 'alice' may write nothing" in denied.stderr) == (9, True), denied.stderr
            bare = {name: "" for name in environment if name != "RAFTLOG_ENDPOINTS"}
            refused = subprocess.run(
                [*RAFTLOG, "get", "after"], env={**os.environ, **environment, **bare}, capture_output=True, text=True,
                timeout=30, check=False,
            )  # fmt: skip
            assert refused.returncode == 2
            assert "raftlog cert client" in refused.stderr
        finally:
            for node in nodes:
                node.terminate()
            for node in nodes:
                node.wait(20)
