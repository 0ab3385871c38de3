"""Runs NATS JetStream as a peer: three servers on loopback, one stream of three replicas, in its own text protocol.

By default it acknowledges before anything is synced; the newest can sync always (`sync_interval: always`).
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from bench.instruments.processes import Processes
from bench.instruments.tools import Program
from bench.loads import raw
from raftlog.cluster.node.ports import free_ports

STREAM = "BENCH"
SUBJECT = "bench"
_CONNECT = b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB inbox.@@@@ 1\r\nPING\r\n'


class Nats(Processes):
    """Three servers under one folder, started by `start`, ended by `stop`."""

    def __init__(self, program: Program, folder: Path, *, sync_always: bool = False) -> None:
        self._program = program
        super().__init__(folder)
        self._sync_always = sync_always
        ports = free_ports(6)
        self._clients, self._routes = ports[:3], ports[3:]
        self._leader = 0

    @property
    def name(self) -> str:
        """Name and version, and how it syncs."""
        done = subprocess.run([self._program.path, "--version"], capture_output=True, text=True, check=True)
        version = done.stdout.rpartition(" ")[2].strip().removeprefix("v")
        return f"NATS {version}" + (" sync always" if self._sync_always else "")

    @property
    def url(self) -> str:
        """Where clients find the stream's leader."""
        return f"nats://127.0.0.1:{self._leader}"

    def start(self, deadline_s: float = 40.0) -> None:
        """Start all servers, make the stream, find its leader. Raises RuntimeError after the deadline."""
        sync = "sync_interval: always" if self._sync_always else ""
        routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in self._routes)
        for k, (client, route) in enumerate(zip(self._clients, self._routes, strict=True)):
            settings = self.folder / f"n{k}.conf"
            settings.write_text(
                f'server_name: n{k}\nlisten: "127.0.0.1:{client}"\n'
                f'jetstream {{ store_dir: "{self.folder}/data-{k}"\n{sync} }}\n'
                f'cluster {{ name: bench, listen: "127.0.0.1:{route}", routes: [{routes}] }}\n'
            )
            self.launch(f"n{k}", [self._program.path, "-c", str(settings)])
        self._leader = self.wait(
            "NATS has a stream with a leader", self._make_stream, deadline_s=deadline_s, pause_s=0.3
        )

    def _make_stream(self) -> int:
        """Makes the stream unless it exists, and returns the port of its leader. Raises LookupError with the answer
        otherwise.
        """
        made = {"name": STREAM, "subjects": [SUBJECT], "num_replicas": 3, "storage": "file"}
        said = self.ask(f"$JS.API.STREAM.CREATE.{STREAM}", made, self._clients[0])
        leader = said.get("cluster", {}).get("leader", "")
        if not leader:
            raise LookupError(said)
        return self._clients[int(leader[1:])]

    def ask(self, subject: str, body: dict[str, Any], port: int = 0) -> Any:
        """One request of the JetStream API. Raises OSError, or ValueError for an answer that is none."""
        payload = json.dumps(body).encode() if body else b""
        with socket.create_connection(("127.0.0.1", port or self._leader), 5) as sock:
            sock.sendall(_CONNECT + b"PUB %s inbox.@@@@ %d\r\n%s\r\n" % (subject.encode(), len(payload), payload))
            seen = b""
            while b"\r\nMSG " not in seen or not seen.endswith(b"}\r\n"):
                more = sock.recv(1 << 20)
                if not more:
                    raise ConnectionError("the server closed the connection")
                seen += more
        return json.loads(seen.partition(b"\r\nMSG ")[2].partition(b"\r\n")[2])

    def purge(self) -> None:
        """Empty the stream, so that many rounds do not fill the disk."""
        self.ask(f"$JS.API.STREAM.PURGE.{STREAM}", {})

    def publish(self, value: bytes, in_flight: int, seconds: float, count: int = 0) -> raw.Job:
        """So many publishes in flight over at most four connections to the stream's leader, each acknowledged."""
        connections = min(4, in_flight)
        request = b"PUB %s inbox.@@@@ %d\r\n%s\r\n" % (SUBJECT.encode(), len(value), value)
        return raw.Job(
            self._leader,
            request,
            raw.Answers(b'"seq":', b'"error":'),
            _CONNECT,
            b"PONG\r\n",
            connections,
            in_flight // connections,
            seconds,
            requests_max=count,
        )

    def pull(self, batch: int, messages: int, seconds: float) -> raw.Job:
        """Reads so many messages from the start, in batches, through a pull consumer that acknowledges nothing.

        A request is answered by `batch` messages: the run counts those requests.
        """
        consumer = {"ack_policy": "none", "deliver_policy": "all", "durable_name": f"r{time.monotonic_ns()}"}
        subject = f"$JS.API.CONSUMER.DURABLE.CREATE.{STREAM}.{consumer['durable_name']}"
        said = self.ask(subject, {"stream_name": STREAM, "config": consumer})
        if "error" in said:
            raise RuntimeError(f"NATS made no consumer: {said['error']}")
        body = json.dumps({"batch": batch}).encode()
        target = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{consumer['durable_name']}".encode()
        request = b"PUB %s inbox.@@@@ %d\r\n%s\r\n" % (target, len(body), body)
        answers = raw.Answers(b"\r\nMSG %s 1 " % SUBJECT.encode(), b"\r\nMSG inbox.")
        return raw.Job(self._leader, request, answers, _CONNECT, b"PONG\r\n", 1, 4, seconds, batch, messages // batch)
