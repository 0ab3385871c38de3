"""A deployment leaves nothing behind however its harness ends; what it cuts is tested in tests/acceptance."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from raftlog.chaos.deploy.deployment import Deployment
from raftlog.cluster.node.local_cluster import wait_stopped
from tests.chaos.deploy.cuts import isolate
from tests.chaos.deploy.test_processes import is_gone
from tests.support import free_ports, wait_until

pytestmark = [pytest.mark.serial, pytest.mark.toxiproxy]

HARNESS = """
import sys
from pathlib import Path
from raftlog.chaos.deploy.deployment import Deployment
from raftlog.cluster.node.local_cluster import wait_stopped
from tests.support import free_ports
deployment = Deployment(Path(sys.argv[1]), free_ports, nodes=2)
deployment.start()
deployment.cluster.pause(2)
nodes = [deployment.cluster.pid(node) for node in deployment.cluster.nodes]
print(deployment.toxiproxy.process.pid, *nodes, flush=True)
input()
"""


def test_nothing_outlives_the_harness(tmp_path: Path, toxiproxy_path: Path) -> None:
    """kill -9 of the harness: the Toxiproxy server and the nodes are gone, one that stands still by SIGSTOP and cannot
    notice anything among them."""
    with subprocess.Popen(
        [sys.executable, "-c", HARNESS, tmp_path / "nodes"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as harness:
        assert harness.stdout is not None
        pids = [int(word) for word in harness.stdout.readline().split()]
        assert len(pids) == 3
        assert not any(is_gone(pid) for pid in pids)
        harness.kill()
        harness.wait(10)
    wait_until(lambda: all(is_gone(pid) for pid in pids), 15, what=f"{pids} to be gone")


def test_a_hanging_server_cannot_keep_faults_up(tmp_path: Path, toxiproxy_path: Path) -> None:
    """A Toxiproxy server that answers nothing any more is replaced when the network is healed: the same proxies, and
    no toxic in them."""
    with Deployment(tmp_path / "nodes", free_ports, nodes=2, spares=1) as deployment:
        deployment.start_proxies()
        proxies = set(deployment.toxiproxy.toxics())
        assert len(proxies) == 3 * 2 + 3
        isolate(deployment, 1)
        assert any(deployment.toxiproxy.toxics().values())
        hung = deployment.toxiproxy.process
        deployment.toxiproxy.call_s = 0.2
        hung.send_signal(signal.SIGSTOP)
        assert wait_stopped(hung.pid, 30)
        deployment.heal()
        assert hung.poll() is not None
        assert deployment.toxiproxy.toxics() == {name: [] for name in proxies}
