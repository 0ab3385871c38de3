"""etcd as the peer to compare with: found or built, started as three nodes on loopback, ended by process id.

Debian's `etcd-server` (3.4) is taken from PATH; the newest is built from its Go module when Go is there. Both speak
the same JSON gateway. etcd syncs its log before it answers, as raftlog does.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.wrk import Load, MissingTool

NEWEST = "3.7.3"
_MAIN = """package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
"""


def build(tools: Path) -> Path:
    """The newest etcd, built from its Go module into `tools` (30 s the first time). Raises MissingTool."""
    binary = tools / f"etcd-{NEWEST}"
    if binary.exists():
        return binary
    go = shutil.which("go")
    if go is None:
        raise MissingTool(f"etcd {NEWEST} needs Go to be built: apt-get install golang")
    work = tools / "etcd-build"
    work.mkdir(parents=True, exist_ok=True)
    (work / "main.go").write_text(_MAIN)
    (work / "go.mod").unlink(missing_ok=True)
    caches = {"GOPATH": str(tools / "go"), "GOCACHE": str(tools / "gocache")}
    environment = os.environ | caches | {"GOFLAGS": "-modcacherw"}
    for arguments in (
        ["mod", "init", "peer"],
        ["get", f"go.etcd.io/etcd/server/v3@v{NEWEST}"],
        ["mod", "tidy"],
        ["build", "-o", str(binary.resolve()), "."],
    ):
        done = subprocess.run([go, *arguments], cwd=work, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MissingTool(f"building etcd {NEWEST} failed at `go {arguments[0]}`: {done.stderr.strip()[-500:]}")
    shutil.rmtree(work)
    return binary


def find() -> Path:
    """Debian's etcd on PATH. Raises MissingTool naming the package."""
    path = shutil.which("etcd")
    if path is None:
        raise MissingTool("etcd is not installed: apt-get install etcd-server")
    return Path(path)


class Etcd:
    """Three etcd processes under one folder, started by `start`, ended by `stop`."""

    def __init__(self, binary: Path, folder: Path, ports: list[int]) -> None:
        """`ports`: six free ones."""
        self._binary = binary
        self._folder = folder
        self._clients = ports[:3]
        self._peers = ports[3:6]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._leader_url = ""

    @property
    def version(self) -> str:
        """What the binary says of itself, as in "3.4.23"."""
        done = subprocess.run([self._binary, "--version"], capture_output=True, text=True, check=True)
        return done.stdout.split("etcd Version:", 1)[1].split()[0]

    @property
    def pids(self) -> list[int]:
        """The process ids of all nodes."""
        return [process.pid for process in self._processes]

    def start(self, deadline_s: float = 30.0) -> None:
        """Start all nodes and wait until they have a leader. Raises RuntimeError after the deadline."""
        cluster = ",".join(f"n{k}=http://127.0.0.1:{port}" for k, port in enumerate(self._peers))
        for k in range(3):
            client, peer = f"http://127.0.0.1:{self._clients[k]}", f"http://127.0.0.1:{self._peers[k]}"
            command = [
                str(self._binary), "--name", f"n{k}", "--data-dir", str(self._folder / f"etcd-{k}"),
                "--listen-client-urls", client, "--advertise-client-urls", client,
                "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                "--initial-cluster", cluster, "--initial-cluster-state", "new", "--log-level", "error",
                "--snapshot-count", "100000",
            ]  # fmt: skip
            log = (self._folder / f"etcd-{k}.log").open("wb")
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log))
            log.close()
        until = time.monotonic() + deadline_s
        while time.monotonic() < until:
            for port in self._clients:
                with suppress(OSError, ValueError, KeyError):
                    status = self._post(port, "/v3/maintenance/status", {})
                    if status.get("leader") and status["leader"] == status["header"]["member_id"]:
                        self._leader_url = f"http://127.0.0.1:{port}"
                        return
            time.sleep(0.1)
        raise RuntimeError(f"etcd had no leader after {deadline_s:.0f} s: see the logs in {self._folder}")

    def stop(self) -> None:
        """End all nodes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait(timeout=10)
        self._processes = []

    @staticmethod
    def _post(port: int, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=2) as answer:
            return json.load(answer)

    def prepare(self, value: str) -> None:
        """Put the key that the read load asks for."""
        self._post(int(self._leader_url.rpartition(":")[2]), "/v3/kv/put", self._pair(value))

    @staticmethod
    def _pair(value: str) -> dict[str, str]:
        return {"key": base64.b64encode(b"bench").decode(), "value": base64.b64encode(value.encode()).decode()}

    def write(self, value: str) -> Load:
        """Put one key through the JSON gateway of the leader."""
        return Load(f"{self._leader_url}/v3/kv/put", "POST", json.dumps(self._pair(value)), "application/json")

    def read(self) -> Load:
        """A linearizable range of one key through the JSON gateway of the leader."""
        body = json.dumps({"key": base64.b64encode(b"bench").decode()})
        return Load(f"{self._leader_url}/v3/kv/range", "POST", body, "application/json")
