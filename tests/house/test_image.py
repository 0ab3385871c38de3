"""The image of a node asks its probe's port, and compose.yaml mounts what `raftlog create` makes.

The long test builds the image and runs three nodes of it, where buildah and mmdebstrap are installed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.node.formatting import create_cluster
from tests.house.rules import ROOT
from tests.support import HANG_S, free_port, http_served, wait_until

DOCKERFILE: Final = (ROOT / "Dockerfile").read_text("utf-8")
PORT: Final = 7001
TOOLS: Final = ("buildah", "mmdebstrap")


def healthcheck(port: int) -> list[str]:
    """Its command, with that port in place of its own."""
    (found,) = re.findall(r"^HEALTHCHECK .*?CMD (\[.*?\])$", DOCKERFILE.replace("\\\n", ""), re.MULTILINE)
    command: list[str] = json.loads(found)
    assert "/7080" in command[-1]
    return [*command[:-1], command[-1].replace("/7080", f"/{port}")]


@contextmanager
def probes(status: int) -> Iterator[int]:
    """A server that answers every request with that status; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with http_served(Handler) as url:
        yield int(url.rpartition(":")[2])


def test_the_health_of_a_container_is_what_its_probe_answers() -> None:
    """200 is healthy; another status, or no listener, is not. No Python starts."""
    for status in (200, 503):
        with probes(status) as port:
            done = subprocess.run(healthcheck(port), check=False, timeout=HANG_S, capture_output=True)
            assert (done.returncode == 0) is (status == 200)
    assert subprocess.run(healthcheck(free_port()), check=False, timeout=HANG_S, capture_output=True).returncode != 0
    assert "python" not in " ".join(healthcheck(1))


def test_the_nodes_of_compose_have_the_folders_that_create_makes(tmp_path: Path) -> None:
    """Each has its own folder, host name and volume, and listens on ports that the image names."""
    hosts = ["n1", "n2", "n3"]
    create_cluster(tmp_path / "raftlog-cluster", hosts, port=PORT, peer_port=PORT + 100)
    compose: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
    assert list(compose["services"]) == list(compose["volumes"]) == hosts
    for number, (name, service) in enumerate(compose["services"].items(), 1):
        assert service["hostname"] == name
        assert service["image"] == f"raftlog:{version('raftlog')}"  # what `make image` builds
        (folder, _, mode), (volume, data) = [each.split(":") for each in service["volumes"]]
        assert (tmp_path / folder / "node.toml").read_text("utf-8").startswith(f"node = {number}\n")
        assert (mode, volume) == ("ro", name)
        assert f"RAFTLOG_DATA={data}" in DOCKERFILE
    assert f"EXPOSE {PORT} {PORT + 100} 7080" in DOCKERFILE


# ---------------------------------------------------------------------------------------------------------------
# The image itself.


class Containers:
    """Three nodes of the image on the addresses 127.0.0.1 to 127.0.0.3, each with a root of its own."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self._running = folder, dict[int, subprocess.Popen[bytes]]()
        self.hosts = [f"127.0.0.{node}" for node in (1, 2, 3)]
        self.urls = [f"https://{host}:{port}" for host in self.hosts]
        made = create_cluster(folder / "made", self.hosts, port=port, peer_port=port + 100)
        self.operator = made.operator
        for machine in made.machines.values():
            for path in (machine, *machine.rglob("*")):
                os.chown(path, 10001, 10001)

    def run(self, node: int, *arguments: str) -> subprocess.Popen[bytes]:
        """A process of the image on that machine."""
        data = self.folder / f"data-{node}"
        data.mkdir(exist_ok=True)
        os.chown(data, 10001, 10001)
        mounts = [f"--volume={self.folder}/made/machine-{node}:/etc/raftlog:ro", f"--volume={data}:/data"]
        # buildah passes no SIGTERM on, and mounts nothing over a volume that the image names
        given = [f"HTTP_PROBE_LISTEN={self.hosts[node - 1]}:{free_port()}", "STOP_WITH_STDIN=true", "DATA=/data"]
        settings = [f"--env=RAFTLOG_{each}" for each in given]
        with (self.folder / f"node-{node}.log").open("ab") as log:
            return subprocess.Popen(
                ["buildah", "run", "--isolation=chroot", *settings, *mounts, f"raftlog-test-{node}", "--", *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )

    def start(self, node: int) -> subprocess.Popen[bytes]:
        """The node as the image starts it."""
        command = ["raftlog", *json.loads(re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)[0])]
        self._running[node] = self.run(node, *command)
        return self._running[node]

    def done(self, node: int, *arguments: str) -> bool:
        """Whether a command in that container ended with 0."""
        process = self.run(node, *arguments)
        process.communicate(timeout=HANG_S)
        return process.returncode == 0

    def refused(self, node: int) -> int:
        """The exit code of a node that ends by itself."""
        code = self.start(node).wait(HANG_S)
        self.stop(node)
        return code

    def stop(self, node: int) -> int:
        """A clean stop; returns the exit code."""
        process = self._running.pop(node)
        process.communicate(timeout=HANG_S)  # closes its standard input
        return process.returncode

    def end(self) -> None:
        """Ends all of them."""
        for node in list(self._running):
            self.stop(node)


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The image, built on a Debian with Python, and a container for each of three nodes."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {', '.join(TOOLS)} (Debian: apt-get install {' '.join(TOOLS)})")
    monkeypatch.setenv("STORAGE_DRIVER", "vfs")
    monkeypatch.setenv("BUILDAH_ISOLATION", "chroot")
    base, tag = "localhost/raftlog-test-base", "localhost/raftlog:test"
    root = tmp_path / "root.tar"
    _done("mmdebstrap", "--quiet", "--variant=minbase", "--include=python3,ca-certificates", "bookworm", root)
    (tmp_path / "Dockerfile").write_text("FROM scratch\nADD root.tar /\n")
    _done("buildah", "build", "-q", "-t", base, tmp_path)
    monkeypatch.setenv("BASE", base)
    monkeypatch.setenv("TAG", tag)
    with ExitStack() as after:
        after.callback(_done, "buildah", "rmi", "--force", base, tag)
        _done(ROOT / ".ci/image")
        for node in (1, 2, 3):
            _done("buildah", "from", "--name", f"raftlog-test-{node}", tag)
            after.callback(_done, "buildah", "rm", f"raftlog-test-{node}")
        yield tag


def _done(*command: str | Path) -> None:
    done = subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True, timeout=900, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.serial
def test_three_nodes_of_the_image_take_writes_and_refuse_a_lost_volume(tmp_path: Path, image: str) -> None:
    """Started as the image says, they make their data, elect a leader and take writes. A node that comes back with an
    empty volume ends with 11."""
    containers = Containers(tmp_path, free_port())
    try:
        for node in (1, 2, 3):
            containers.start(node)
        first = ["access", "init", "operator", "--config", "node.toml"]
        wait_until(lambda: containers.done(1, "raftlog", *first), HANG_S, what="the first admin")
        with SyncClient(containers.urls, tls=containers.operator) as client:
            client.put(b"k", b"v")
            assert containers.stop(3) == 0
            shutil.rmtree(tmp_path / "data-3")
            client.put(b"k", b"w")
            assert containers.refused(3) == NodeExit.DATA
            pair = client.get(b"k")
            assert pair is not None
            assert pair.value == b"w"
    finally:
        containers.end()
