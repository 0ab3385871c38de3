"""Runs a Redis server of its own on loopback, for the tests of sinks into Redis.

The program comes from PATH, or from where Debian puts it. Its folder outlives a kill and goes with `stop`.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from tests.support import free_port, served, wait_until

_START_S = 20.0
_HINT = "Redis is not installed; Debian: apt-get install redis-server"


class RedisNotFoundError(RuntimeError):
    """No Redis server; the message says how to get one."""


class RedisServer:
    """One server, which writes each command to its disk unless `options` say otherwise."""

    def __init__(self, port: int, *options: str) -> None:
        found = shutil.which("redis-server") or shutil.which("redis-server", path="/usr/bin:/usr/local/bin")
        if found is None:
            raise RedisNotFoundError(_HINT)
        self.port = port
        self.folder = Path(tempfile.mkdtemp(prefix="raftlog-redis-"))
        durable = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
        where = ("--port", str(port), "--bind", "127.0.0.1", "--dir", str(self.folder / "data"))
        self._command = (found, *where, *durable, *options)
        self._process: subprocess.Popen[bytes] | None = None
        (self.folder / "data").mkdir()

    @property
    def url(self) -> str:
        """How to connect."""
        return f"redis://127.0.0.1:{self.port}"

    def client(self) -> redis.Redis:
        """A connection of the test's own; the caller closes it."""
        return redis.Redis(port=self.port, decode_responses=True)

    def start(self) -> None:
        """Starts the server, and waits until it answers."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, cwd=self.folder, stdout=log, stderr=log)
        wait_until(self._answers, _START_S, what=f"Redis, whose log is {self.folder / 'log'}", every_s=0.02)

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.exceptions.AuthenticationError:
            return True
        except redis.exceptions.RedisError:
            return False

    def kill(self) -> None:
        """Kills the server as the kernel would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ends the server and deletes its folder."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def redis_served(*options: str) -> Iterator[RedisServer]:
    """A server with these options; skips without Redis."""
    with served(lambda: RedisServer(free_port(), *options), RedisNotFoundError) as server:
        yield server
