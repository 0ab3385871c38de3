"""Runs a PostgreSQL server of its own on loopback, for the tests of the copy of its changes.

The server's programs come from PATH, or from where Debian puts them. PostgreSQL refuses to run as root, so root starts
it as another user. It has no password and lives in a temporary folder.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support import wait_until

VERSION_MIN = 15
_START_S = 30.0
_HINT = f"PostgreSQL {VERSION_MIN} or newer is not installed; Debian: apt-get install postgresql"


class PostgresNotFoundError(RuntimeError):
    """No PostgreSQL server; the message says how to get one."""


def binaries() -> Path:
    """The folder of `initdb` and `postgres`. Raises PostgresNotFoundError."""
    on_path = shutil.which("initdb")
    found = [Path(on_path).resolve().parent] if on_path else []
    installed = Path("/usr/lib/postgresql")
    if installed.is_dir():
        found += sorted(
            (each / "bin" for each in installed.iterdir() if each.name.isdigit()),
            key=lambda each: -int(each.parent.name),
        )
    for folder in found:
        if (folder / "postgres").exists() and _version(folder) >= VERSION_MIN:
            return folder
    raise PostgresNotFoundError(_HINT)


def _version(folder: Path) -> int:
    told = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    return int(told.split()[2].partition(".")[0])


class PostgresServer:
    """One server with wal_level logical. `settings` are options of postgresql.conf."""

    def __init__(self, port: int, settings: Mapping[str, str] = {}) -> None:
        self.bin = binaries()
        self.port = port
        self.folder = Path(tempfile.mkdtemp(prefix="raftlog-postgres-"))
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            owner = _unprivileged()
            self._user = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
        self._settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": "",
            "wal_level": "logical",
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._run("initdb", "-D", str(self.data), "-U", "raftlog", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.folder / "data"

    @property
    def conninfo(self) -> str:
        """How to connect, without a password."""
        return f"host=127.0.0.1 port={self.port} user=raftlog dbname=postgres"

    def _run(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            [self.bin / program, *arguments], cwd=self.folder, capture_output=True, text=True, **self._user
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stdout}{done.stderr}")
        return str(done.stdout)

    def sql(self, *commands: str) -> str:
        """Runs commands, each by itself; returns the values, one a line."""
        given = [each for command in commands for each in ("-c", command)]
        return self._run("psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", self.conninfo, *given)

    def start(self) -> None:
        """Starts the server, and waits until it takes connections. It recovers first if it was killed."""
        wait_until(self._serves, _START_S, what=f"PostgreSQL, whose log is {self.folder / 'log'}", every_s=0.05)

    def _serves(self) -> bool:
        if self._process is None or self._process.poll() is not None:  # children of a killed one may hold its memory
            self._process = self._started()
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0 and self._takes_queries()

    def _started(self) -> subprocess.Popen[bytes]:
        options = [each for name, value in self._settings.items() for each in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [self.bin / "postgres", "-D", self.data, *options],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self._user,
            )

    def _takes_queries(self) -> bool:
        try:
            return self.sql("SELECT 1").strip() == "1"
        except RuntimeError:
            return False

    def kill(self) -> None:
        """Kills the server as a power cut would: no checkpoint, no goodbye to its clients.

        A process of it that serves a client would answer some more statements, so this returns when all are gone.
        """
        assert self._process is not None
        pid = self._process.pid
        others = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
        self._process.kill()
        for each in others:
            with suppress(ProcessLookupError):
                os.kill(int(each), signal.SIGKILL)
        self._process.wait()
        wait_until(lambda: not any(map(_is_running, others)), what="the end of the server's processes")

    def stop(self) -> None:
        """Stops the server and deletes its folder."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)  # a fast shutdown
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _unprivileged() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")
