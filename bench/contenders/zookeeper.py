"""Runs ZooKeeper as a peer: three servers on loopback, spoken to in its own binary protocol by the raw client.

It syncs its transaction log before it answers a write. A linearizable read is a `sync` and a `getData` behind it.
"""

from __future__ import annotations

import shutil
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bench.instruments.processes import Processes
from bench.loads import raw
from raftlog.cluster.node.ports import free_ports

PATH = "/bench"
_CREATE, _GET, _SET, _SYNC, _MULTI = 1, 4, 5, 9, 14
_ERROR_AT = 16  # of an answer: length, xid, zxid, error


class ZooKeeper(Processes):
    """Three servers under one folder, started by `start`, ended by `stop`."""

    def __init__(self, archives: Sequence[Path], folder: Path) -> None:
        self._archives = archives
        super().__init__(folder)
        ports = free_ports(9)
        self._clients, self._quorum, self._election = ports[:3], ports[3:6], ports[6:]
        self._leader = 0

    @property
    def name(self) -> str:
        """Name and version."""
        jar = next(self._archives[0].parent.glob("zookeeper-[0-9]*.jar"))
        return f"ZooKeeper {jar.stem.rpartition('-')[2]}"

    def start(self, deadline_s: float = 60.0) -> None:
        """Start all servers and wait until they have a leader. Raises RuntimeError after the deadline."""
        java = shutil.which("java") or "java"
        members = "".join(
            f"server.{k + 1}=127.0.0.1:{quorum}:{election};127.0.0.1:{client}\n"
            for k, (quorum, election, client) in enumerate(
                zip(self._quorum, self._election, self._clients, strict=True)
            )
        )
        for k in range(3):
            data = self.folder / f"data-{k}"
            data.mkdir()
            (data / "myid").write_text(f"{k + 1}\n")
            settings = self.folder / f"n{k}.cfg"
            settings.write_text(
                f"tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir={data}\nadmin.enableServer=false\n"
                f"4lw.commands.whitelist=srvr\nmaxClientCnxns=0\n{members}"
            )
            path = ":".join(str(archive) for archive in self._archives)
            main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
            self.launch(f"n{k}", [java, "-Xmx1g", "-cp", path, main, str(settings)])
        self._leader = self.wait("ZooKeeper has a leader", self._find_leader, deadline_s=deadline_s, pause_s=0.2)

    def _find_leader(self) -> int | None:
        for port in self._clients:
            with suppress(OSError):
                if "Mode: leader" in self._told(port):
                    return port
        return None

    @staticmethod
    def _told(port: int) -> str:
        with socket.create_connection(("127.0.0.1", port), 2) as sock:
            sock.sendall(b"srvr")
            return b"".join(iter(lambda: sock.recv(4096), b"")).decode(errors="replace")

    def prepare(self, value: bytes) -> None:
        """Make the node that the loads set and get. Raises RuntimeError if that fails."""
        everyone = struct.pack(">ii", 1, 31) + _text("world") + _text("anyone")
        create = _framed(
            struct.pack(">ii", 1, _CREATE) + _text(PATH) + _buffer(value) + everyone + struct.pack(">i", 0)
        )
        with socket.create_connection(("127.0.0.1", self._leader), 10) as sock:
            for message in (_HELLO, create):
                sock.sendall(message)
                seen = b""
                while len(seen) < 4 or len(seen) < 4 + struct.unpack_from(">I", seen)[0]:
                    more = sock.recv(4096)
                    if not more:
                        raise RuntimeError("ZooKeeper closed the connection")
                    seen += more
        if error := struct.unpack_from(">i", seen, _ERROR_AT)[0]:
            raise RuntimeError(f"ZooKeeper's create failed with {error}")

    def _job(self, request: bytes, connections: int, seconds: float, answers: int = 1) -> raw.Job:
        return raw.Job(self._leader, request, raw.Frames(_ERROR_AT), _HELLO, b"", connections, 1, seconds, answers)

    def set_data(self, value: bytes, connections: int, seconds: float) -> raw.Job:
        """One durable write a request."""
        return self._job(_framed(struct.pack(">ii", 1, _SET) + _set_body(value)), connections, seconds)

    def multi(self, value: bytes, count: int, connections: int, seconds: float) -> raw.Job:
        """So many writes in one transaction."""
        one = struct.pack(">i?i", _SET, False, -1) + _set_body(value)
        body = struct.pack(">ii", 1, _MULTI) + one * count + struct.pack(">i?i", -1, True, -1)
        return self._job(_framed(body), connections, seconds)

    def get_data(self, connections: int, seconds: float) -> raw.Job:
        """One linearizable read: sync and getData, two answers."""
        sync = _framed(struct.pack(">ii", 1, _SYNC) + _text(PATH))
        get = _framed(struct.pack(">ii", 2, _GET) + _text(PATH) + b"\0")
        return self._job(sync + get, connections, seconds, answers=2)


def _framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def _buffer(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _text(text: str) -> bytes:
    return _buffer(text.encode())


def _set_body(value: bytes) -> bytes:
    return _text(PATH) + _buffer(value) + struct.pack(">i", -1)


_HELLO = _framed(struct.pack(">iqiq", 0, 0, 30_000, 0) + _buffer(bytes(16)) + b"\0")
