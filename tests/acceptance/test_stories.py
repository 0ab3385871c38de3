"""The stories of docs/operations about members and restore, by the commands of the page: without and with TLS.

With TLS there are users too, and each node runs on a machine of its own (`tests.acceptance.machines`). Only addresses
and folders are others than on the page. Its comment `with TLS only` marks the lines that a cluster without TLS
leaves out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from raftlog.cluster.node.formatting import tls_files
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.acceptance.conftest import Measure
from tests.acceptance.machines import machines, run
from tests.cluster.cli.test_docs_blocks import SHELL, found_block
from tests.house.rules import ROOT
from tests.support import RAFTLOG, free_ports, variables_of

ADDRESS = re.compile(r"(https?://)?127\.0\.0\.1:(7[0-2]0\d)|10\.0\.0\.(\d)")
UP = """
up() { "$PYTHON" -m raftlog.cluster.cli.main up "$@" >up.log 2>&1 & }
until_it_serves() { until raftlog get story -e "$1" --deadline 2; do sleep 0.2; done; }
"""
pytestmark = pytest.mark.timeout(300)


class Place(NamedTuple):
    """Where the commands of an operator run. `hosts` and `ports`: of the addresses on the page."""

    folder: Path
    hosts: Mapping[int, str]  # by node
    ports: Mapping[int, int]  # by port on the page
    machines: Mapping[int, Sequence[str]]  # by node: the words that run a command there
    environment: dict[str, str]

    @property
    def has_tls(self) -> bool:
        """Whether the cluster has it."""
        return "RAFTLOG_CA" in self.environment

    def url(self, node: int) -> str:
        """Of a node's API."""
        return self.placed(f"http://127.0.0.1:{7000 + node}")

    def placed(self, text: str) -> str:
        """A text of the page with the addresses of this cluster."""

        def other(found: re.Match[str]) -> str:
            if found[3]:
                return self.hosts[int(found[3])]
            scheme = ("https://" if self.has_tls else "http://") if found[1] else ""
            return f"{scheme}{self.hosts[int(found[2][3])]}:{self.ports[int(found[2])]}"

        return ADDRESS.sub(other, text)

    def tell(self, start: str, node: int = 0, then: str = "") -> None:
        """Runs the block of the page that begins so, under `set -e`; on the machine of `node` what runs a node."""
        lines = found_block(start).text.splitlines()
        wanted = [line for line in lines if self.has_tls or "# with TLS only" not in line]
        script = self.placed("\n".join(wanted)).replace("raftlog up ", "up ")
        self.bash(f"{script}\n{then}", node)

    def bash(self, script: str, node: int = 0) -> None:
        """Runs a script under `set -e`; on the machine of `node` what runs a node."""
        more = {"MACHINE": " ".join(self.machines.get(node, ()))}
        done = subprocess.run(
            ["bash", "-c", "\n".join((SHELL, UP, script))],
            cwd=self.folder,
            env=self.environment | more,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stderr[-4000:]}\n{done.stdout[-2000:]}"


def environment_of(urls: Sequence[str], tls: Path | None) -> dict[str, str]:
    """For the commands of an operator."""
    files = {} if tls is None else variables_of(tls_files(tls, "client-operator"))
    own = {"RAFTLOG_ENDPOINTS": ",".join(urls), "PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    return os.environ | own | files


@contextmanager
def plain_cluster(folder: Path) -> Iterator[tuple[Place, LocalCluster]]:
    """Three nodes as `raftlog up --data data` has them."""
    pages = [*range(7001, 7005), *range(7101, 7105), 7203]
    ports = dict(zip(pages, free_ports(len(pages)), strict=True))
    used = [ports[each] for each in (7101, 7102, 7103, 7001, 7002, 7003)]
    with LocalCluster(folder / "data", 3, ports=used) as cluster:
        cluster.restore()
        place = Place(folder, dict.fromkeys(range(1, 5), "127.0.0.1"), ports, {}, environment_of(cluster.urls, None))
        yield place, cluster


def test_the_stories_of_members_and_restore_run_without_tls(tmp_path: Path) -> None:
    """A new node, a node that leaves, a wiped node, another address, a backup, and a cluster that is made from it."""
    with plain_cluster(tmp_path) as (place, cluster):
        run("put", "story", "told", cwd=tmp_path, environment=place.environment)
        members_change(place, lambda: cluster.kill(3))
        place.tell("raftlog backup nightly")
        cluster.stop()
        place.tell("mkdir new && cp data/cluster.toml", then=f"until_it_serves {place.url(3)}")


def members_change(place: Place, lose_node_3: object) -> None:
    """The stories of the section about members, each with the node at the end serving reads."""
    place.tell("raftlog members add 4", 4, f"until_it_serves {place.url(4)}; raftlog members list")
    place.tell("raftlog members remove 4")
    assert callable(lose_node_3)
    lose_node_3()
    place.tell("raftlog members replace 3  ", 3, f"until_it_serves {place.url(3)}")
    place.tell("raftlog cert renew tls/node-3.pem", 3, f"until_it_serves {place.url(3)}")


def start_nodes(ends: ExitStack, made: Path, there: Mapping[int, Sequence[str]]) -> dict[int, subprocess.Popen[bytes]]:
    """`raftlog node --config node.toml` on each machine."""
    nodes: dict[int, subprocess.Popen[bytes]] = {}
    for node in (1, 2, 3):
        folder = made / f"machine-{node}"
        with open(folder / "node.log", "wb") as log:
            command = [*there[node], *RAFTLOG, "node", "--config", "node.toml"]
            nodes[node] = subprocess.Popen(command, cwd=folder, stderr=log, stdout=log)
        ends.callback(end, nodes[node])
    return nodes


def end(node: subprocess.Popen[bytes]) -> None:
    """Stops a node, if it runs."""
    node.terminate()
    node.wait(20)


def test_the_stories_of_members_and_restore_run_with_tls_and_users_on_three_machines(
    tmp_path: Path, record_property: Measure
) -> None:
    """The same on machines of their own. The restored cluster has new certificates, and its users as before."""
    with ExitStack() as ends:
        found = ends.enter_context(machines(record_property, 4))
        hosts = dict(enumerate(found, 1))
        there = dict(enumerate(found.values(), 1))
        made = tmp_path / "made"
        run("create", *list(hosts.values())[:3], "--folder", "made", cwd=tmp_path)
        for node in (1, 2, 3):
            run("format", "cluster.toml", "--node", str(node), "--force-new-cluster", cwd=made / f"machine-{node}")
        ports = {port: 7001 if port < 7100 else 7101 if port < 7200 else port for port in range(7001, 7300)}
        urls = [f"https://{hosts[node]}:7001" for node in (1, 2, 3)]
        place = Place(made, hosts, ports, there, environment_of(urls, made / "tls"))
        nodes = start_nodes(ends, made, there)
        run("access", "init", "operator", "--config", "node.toml", "--deadline", "30", cwd=made / "machine-1")
        run("user", "set", "alice", "--role", "reader", cwd=made, environment=place.environment)
        run("put", "story", "told", cwd=made, environment=place.environment)

        def lose_node_3() -> None:
            nodes[3].kill()
            nodes[3].wait()
            shutil.rmtree(made / "machine-3" / "node-3")

        members_change(place, lose_node_3)
        place.tell("raftlog backup nightly")
        for process in nodes.values():
            end(process)
        restored(place, ends)


def restored(place: Place, ends: ExitStack) -> None:
    """The story of a restore on several machines."""
    place.tell("raftlog create 10.0.0.1 10.0.0.2 10.0.0.3 --folder new")
    new = place.folder / "new"
    for node in (1, 2, 3):
        folder = new / f"machine-{node}"
        shutil.copytree(place.folder / "nightly", folder / "nightly")
        restore, start = found_block("raftlog restore nightly --cluster cluster").text.splitlines()
        run(*restore.replace("--node N", f"--node {node}").split()[1:], cwd=folder, environment=place.environment)
        assert start == "raftlog node --config node.toml"
    start_nodes(ends, new, place.machines)
    environment = environment_of([place.url(node) for node in (1, 2, 3)], new / "tls")
    place._replace(environment=environment).bash(f"until_it_serves {place.url(2)}")
    assert "alice" in run("user", "list", cwd=new, environment=environment)
