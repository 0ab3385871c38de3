"""Runs a whole cluster of node processes on this machine, for `raftlog up`, the demo and tests.

Processes are known by pid, and run in sessions of their own, so that Ctrl-C reaches only the process that started them.
They stop by themselves when that process ends for any reason: it alone holds the write end of a pipe, and they hold the
read end.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from raftlog.cluster.api.status import Status
from raftlog.cluster.config.cluster_file import (
    ClusterNode,
    SettingsError,
    parse_cluster_file,
    quoted,
    read_cluster,
)
from raftlog.cluster.config.joining import TLS_FOLDER, tls_lines
from raftlog.cluster.config.settings import DiskSettings
from raftlog.cluster.node.formatting import (
    OPERATOR,
    format_cluster,
    format_join,
    hosts_of,
    make_certificates,
    new_cluster,
    tls_files,
)
from raftlog.cluster.node.ports import free_ports
from raftlog.cluster.runtime.file_errors import PRIVATE_FOLDER, replace_file
from raftlog.cluster.security.tls import TlsFiles, client_context

CLUSTER_FILE: Final = "cluster.toml"
READY_S: Final = 30.0
STOP_S: Final = 15.0
ASK_S: Final = 2.0
_POLL_S: Final = 0.02
_TAIL_BYTES: Final = 4_096
_status: Final = msgspec.json.Decoder(Status).decode


class LocalClusterError(RuntimeError):
    """The cluster did not do what it should. The message has the end of the log of the failed node."""


class LocalCluster:
    """Nodes in `folder`, which is formatted if it has no cluster file yet; a context manager.

    `settings` are keys of the settings file (`raft.heartbeat_ms`) for every node. `dial` maps a node to the addresses
    that it dials instead of its peers' own (proxies). `command` runs the command line. `environment` is added to this
    process's own; `environments` adds more for a node's next start. `started` is called with the pid of every node
    process.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int = 3,
        *,
        settings: Mapping[str, Any] | None = None,
        dial: Mapping[int, Mapping[int, str]] | None = None,
        ports: Sequence[int] = (),
        secure: bool = False,
        command: Sequence[str] = (sys.executable, "-m", "raftlog.cluster.cli.main"),
        environment: Mapping[str, str] | None = None,
        started: Callable[[int], None] = lambda pid: None,
    ) -> None:
        """`ports` are the ports of the peers and then of the APIs, for a new cluster; free ones by default. `secure`: a
        new cluster speaks TLS, and its certificates are made in the folder `tls`.

        Raises SettingsError, TlsError, or DiskError for a data folder that exists already.
        """
        self.folder = folder
        self.file = folder / CLUSTER_FILE
        self._command = list(command)
        self._environment = dict(environment or {})
        self.environments: dict[int, Mapping[str, str]] = {}
        self._started = started
        self._paused: set[int] = set()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._settings = dict(settings or {})
        if self.file.exists():
            self.is_new = False
            self.cluster = read_cluster(self.file)
        else:
            self.is_new = True
            chosen = list(ports) or free_ports(2 * nodes)
            self.cluster = new_cluster(
                nodes, peer_ports=chosen[:nodes], http_ports=chosen[nodes:], scheme="https" if secure else "http"
            )
            self.folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
        if self.is_secure and not (self.folder / TLS_FOLDER).exists():  # also beside a restored cluster
            make_certificates(self.folder / TLS_FOLDER, self.cluster)
        if self.is_new:
            format_cluster(self.cluster, self.file, segment_bytes=self._segment_bytes())
        self._client = client_context(self.tls_files(), checks_host=True) if self.is_secure else None
        for node in self.cluster.node:
            self._write_settings(node, (dial or {}).get(node.id, {}))

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- places ---------------------------------------------------------------------------------------------------

    @property
    def scheme(self) -> str:
        """Of its URLs: http or https."""
        return urlsplit(self.cluster.node[0].url).scheme

    @property
    def is_secure(self) -> bool:
        """Whether its nodes speak TLS."""
        return self.scheme == "https"

    def tls_files(self, holder: str = f"client-{OPERATOR}") -> TlsFiles:
        """The files of a client, or of `node-N`, of a secure cluster."""
        return tls_files(self.folder / TLS_FOLDER, holder)

    @property
    def nodes(self) -> list[int]:
        """The ids of all nodes."""
        return [node.id for node in self.cluster.node]

    @property
    def urls(self) -> list[str]:
        """The base URLs of all nodes' APIs."""
        return [node.url for node in self.cluster.node]

    def url(self, node: int) -> str:
        """The base URL of its API."""
        return self.place(node).url

    def place(self, node: int) -> ClusterNode:
        """The [[node]] of the cluster file. Raises KeyError."""
        if (found := self.cluster.of(node)) is None:
            raise KeyError(node)
        return found

    def data(self, node: int) -> Path:
        """Its data folder."""
        return self.folder / self.place(node).data

    def settings_file(self, node: int) -> Path:
        """Its settings, for `raftlog node --config`."""
        return self.folder / f"node-{node}.toml"

    def log_file(self, node: int) -> Path:
        """The log of its process."""
        return self.folder / f"node-{node}.log"

    def pid(self, node: int) -> int | None:
        """The process of a node, or None when it does not run."""
        process = self._running.get(node)
        return process.pid if process is not None and process.poll() is None else None

    def exit_code(self, node: int) -> int | None:
        """The exit code of a node's process that ended by itself, or minus the signal that killed it; else None."""
        process = self._running.get(node)
        return None if process is None else process.poll()

    @property
    def running(self) -> list[int]:
        """The nodes whose processes run (or are paused)."""
        return [node for node in list(self._running) if self.pid(node) is not None]  # threads start nodes

    # -- processes ------------------------------------------------------------------------------------------------

    def start(self, nodes: Iterable[int] | None = None) -> None:
        """Starts all nodes (or these) that do not run; `wait_ready` waits until they serve."""
        for node in nodes if nodes is not None else self.nodes:
            self.start_node(node)

    def start_node(self, node: int) -> None:
        """Starts one node unless it runs."""
        if self.pid(node) is not None:
            return
        self._forget(node)
        command = [*self._command, "node", "--config", str(self.settings_file(node))]
        if "log.file" not in self._settings:  # not in the settings file: a node started by hand logs to its terminal
            command += ["--set", f"log.file={self.log_file(node).name}"]
        with open(self.log_file(node), "ab") as log:
            process = self._running[node] = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self._environment, **self.environments.get(node, {})},
            )
        self._started(process.pid)

    def stop_node(self, node: int, number: signal.Signals = signal.SIGTERM, timeout_s: float = STOP_S) -> int:
        """Stops a node cleanly, with a hand-over. Returns its exit code. Kills it if it takes too long."""
        process = self._running.get(node)
        if process is None:
            return 0
        if process.poll() is None:
            os.kill(process.pid, signal.SIGCONT)
            os.kill(process.pid, number)
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._forget(node)
        return process.returncode

    def kill(self, *nodes: int) -> None:
        """Sends SIGKILL to all of them, before it waits for any."""
        killed = [self._running[node] for node in nodes if self.pid(node) is not None]
        for process in killed:
            process.kill()
        for process in killed:
            process.wait()
        for node in nodes:
            self._forget(node)

    def pause(self, node: int) -> None:
        """Sends SIGSTOP. The process has stopped when this returns; its connections stay open."""
        pid = self._signal(node, signal.SIGSTOP)
        if not wait_stopped(pid, READY_S):
            raise LocalClusterError(f"node {node} (pid {pid}) still runs {READY_S:g} s after SIGSTOP")
        self._paused.add(node)

    def resume(self, node: int) -> None:
        """Sends SIGCONT."""
        self._signal(node, signal.SIGCONT)
        self._paused.discard(node)

    def restore(self, timeout_s: float = READY_S) -> None:
        """Makes all nodes run and be ready, after any fault."""
        for node in list(self._paused):
            self.resume(node)
        self.start()
        self.wait_ready(timeout_s=timeout_s)

    def stop(self) -> None:
        """Stops every running node, one after another. The last ones have no node left to hand over to."""
        for node in list(self._running):
            self.stop_node(node)

    def remove(self) -> None:
        """Kills every node and removes the folder."""
        self.kill(*self.nodes)
        shutil.rmtree(self.folder, ignore_errors=True)

    def adopt(self, join: str, dial: Mapping[int, str] | None = None, http: str = "") -> int:
        """Takes in the new node of a join file: makes its data folder and settings. Returns its number.

        It may replace a node of its number that does not run. `start_node` starts it. `http`: its listening address, if
        its URL names a proxy before it. Raises SettingsError or DiskError.
        """
        joining = parse_cluster_file(join, "the join file")
        node = joining.cluster.join
        place = joining.of(node)
        assert place is not None, "a join file has its node"
        data = f"node-{node}-{place.incarnation[:8]}"
        file = self.folder / f"join-{node}-{place.incarnation[:8]}.toml"
        file.write_text(join, encoding="utf-8")
        format_join(file, self.folder / data, segment_bytes=self._segment_bytes())
        self._forget(node)
        others = [each for each in self.cluster.node if each.id != node]
        place = msgspec.structs.replace(place, data=data, url=f"{self.scheme}://{http}" if http else place.url)
        nodes = sorted([*others, place], key=lambda each: each.id)
        self.cluster = msgspec.structs.replace(self.cluster, node=nodes)
        if self.is_secure and not Path(self.tls_files(f"node-{node}").key).exists():
            from raftlog.cluster.security.authority import make_node  # here: its library takes long to import

            make_node(self.folder / TLS_FOLDER, self.cluster.cluster.log, node, hosts_of(place))
        self._write_settings(place, dial or {}, file.name, http)
        return node

    def format_again(self, node: int) -> None:
        """Makes the data folder of a node again under its old identity, which an operator must never do.

        Raises SettingsError, or DiskError for a folder with something in it.
        """
        place = self.place(node)
        join = self.folder / f"join-{node}-{place.incarnation[:8]}.toml"
        if join.exists():
            format_join(join, self.folder / place.data, segment_bytes=self._segment_bytes())
        else:
            format_cluster(self.cluster, self.file, segment_bytes=self._segment_bytes(), nodes=[node])

    def dismiss(self, node: int) -> int:
        """Stops a node that is no member any more, for good. Returns its exit code."""
        code = self.stop_node(node)
        nodes = [each for each in self.cluster.node if each.id != node]
        self.cluster = msgspec.structs.replace(self.cluster, node=nodes)
        return code

    # -- questions ------------------------------------------------------------------------------------------------

    def ask(self, node: int, path: str, timeout_s: float = ASK_S) -> tuple[int, bytes]:
        """GET `path` of a node: status and body. Raises OSError, also when the node has left the cluster."""
        if (place := self.cluster.of(node)) is None:
            raise ConnectionError(f"node {node} has left the cluster")
        address = urlsplit(place.url).netloc
        connection = http.client.HTTPConnection(address, timeout=timeout_s)
        if self._client is not None:
            connection = http.client.HTTPSConnection(address, timeout=timeout_s, context=self._client)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except http.client.HTTPException as error:
            raise ConnectionError(f"node {node}: {error!r}") from error
        finally:
            connection.close()

    def status(self, node: int) -> Status | None:
        """A node's status, or None when it does not answer."""
        try:
            code, body = self.ask(node, "/v1/status")
        except OSError:
            return None
        return _status(body) if code == 200 else None

    def leader(self, timeout_s: float = READY_S) -> int:
        """The node that leads; of several that claim it, the one in the newest term. Paused nodes are not asked.

        Raises LocalClusterError if none does in time.
        """
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            statuses = [self.status(node) for node in self.running if node not in self._paused]
            if leaders := [(each.term, each.node) for each in statuses if each is not None and each.role == "leader"]:
                return max(leaders)[1]
            time.sleep(_POLL_S)
        raise LocalClusterError(f"no leader within {timeout_s:g} s\n{self.tails()}")

    def wait_ready(self, nodes: Iterable[int] | None = None, timeout_s: float = READY_S) -> None:
        """Waits until these nodes (all that run) serve. Raises LocalClusterError when one ends or takes too long."""
        waiting = list(nodes if nodes is not None else self.running)
        end = time.monotonic() + timeout_s
        while waiting:
            for each in waiting:
                process = self._running.get(each)
                if process is None or process.poll() is not None:
                    code = None if process is None else process.returncode
                    raise LocalClusterError(f"node {each} ended with {code} instead of serving\n{self.tail(each)}")
            node = waiting[0]
            with contextlib.suppress(OSError):
                if self.ask(node, "/readyz")[0] == 200:
                    waiting.pop(0)
                    continue
            if time.monotonic() >= end:
                raise LocalClusterError(f"node {node} is not ready within {timeout_s:g} s\n{self.tail(node)}")
            time.sleep(_POLL_S)

    def tail(self, node: int) -> str:
        """The end of a node's log file."""
        try:
            return self.log_file(node).read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
        except OSError:
            return ""

    def tails(self) -> str:
        """The ends of all log files."""
        return "\n".join(f"--- node {node}\n{self.tail(node)}" for node in self.nodes)

    # -- private --------------------------------------------------------------------------------------------------

    def _segment_bytes(self) -> int:
        """The size of the first segments: the settings may be text, as the command line gives them."""
        given = self._settings.get("disk.segment_bytes", DiskSettings().segment_bytes)
        try:
            return int(given)
        except ValueError as error:
            raise SettingsError(f"disk.segment_bytes is {given!r}: it is a number of bytes") from error

    def _signal(self, node: int, number: signal.Signals) -> int:
        pid = self.pid(node)
        if pid is None:
            raise LocalClusterError(f"node {node} does not run\n{self.tail(node)}")
        os.kill(pid, number)
        return pid

    def _forget(self, node: int) -> None:
        self._paused.discard(node)
        process = self._running.pop(node, None)
        if process is not None and process.stdin is not None:
            process.stdin.close()

    def _write_settings(
        self, node: ClusterNode, dial: Mapping[int, str], cluster_file: str = CLUSTER_FILE, http: str = ""
    ) -> None:
        lines = [f"node = {node.id}", f"cluster_file = {quoted(cluster_file)}", "stop_with_stdin = true"]
        lines += [f"http.listen = {quoted(http)}"] if http else []
        if self.is_secure:
            lines += tls_lines(node.id)
        lines += [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in self._settings.items()]
        lines += [f"dial.{to} = {quoted(address)}" for to, address in dial.items()]
        replace_file(self.settings_file(node.id), ("\n".join(lines) + "\n").encode(), is_private=True)


def wait_stopped(pid: int, timeout_s: float) -> bool:
    """Waits after SIGSTOP, which reaches the threads of a process one after another, until none runs; False if one
    still does after `timeout_s`. The name in a stat file may hold any byte; the state follows its last bracket."""
    end = time.monotonic() + timeout_s
    task = Path(f"/proc/{pid}/task")
    while any((each / "stat").read_bytes().rpartition(b")")[2].split()[0] != b"T" for each in task.iterdir()):
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True
