"""Runs `raftlog sink run` as processes that faults kill, pause and replace, into a table of an SQLite file."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from raftlog.cluster.node.local_cluster import wait_stopped

STOP_S: Final = 60.0
"""For a command to end by itself, in seconds, on a machine that may be busy."""

_SETTINGS: Final = """
[sink.copy]
from = {{ keys = "{prefix}" }}
to = "sqlite"
path = "store"
table = "copy"
columns = {{ key = "key:string", value = "value:string" }}
primary_key = ["key"]
"""


class SinkProcess:
    """The newest runner of one sink, which copies the keys below a prefix. `command` runs the command line."""

    def __init__(
        self, folder: Path, prefix: str, urls: Sequence[str], command: Sequence[str], watch: Callable[[int], None]
    ) -> None:
        folder.mkdir(parents=True)
        (folder / "sinks.toml").write_text(_SETTINGS.format(prefix=prefix))
        self._folder, self._watch = folder, watch
        self._command = [*command, "sink"]
        self._rest = ["sinks.toml", "-e", ",".join(urls)]
        self.process: subprocess.Popen[bytes] | None = None
        self.problems: list[str] = []  # runners that ended by themselves

    def start(self) -> subprocess.Popen[bytes]:
        """Starts a runner. An older one that still runs is the caller's."""
        with self.log.open("ab") as log:
            command = [*self._command, "run", *self._rest]
            process = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log)
        self._watch(process.pid)
        self.process = process
        return process

    def kill(self) -> int | None:
        """SIGKILL. Returns the pid of the runner that is gone; None if there is none."""
        process, self.process = self.process, None
        if process is None:
            return None
        if process.poll() is not None:
            self.problems.append(f"the runner of the sink ended by itself, with {process.returncode}: {self._tail()}")
        end(process)
        return process.pid

    def pause(self) -> subprocess.Popen[bytes] | None:
        """SIGSTOP of the runner, which another one may replace then."""
        process = self.process
        if process is None or process.poll() is not None:
            return None
        os.kill(process.pid, signal.SIGSTOP)
        if not wait_stopped(process.pid, STOP_S):
            raise RuntimeError(f"the runner {process.pid} does not stand")
        return process

    def finish(self) -> list[str]:
        """Kills the runner, brings the store to the end of the log, and has the product verify it.

        Returns the problems so far, as whole sentences.
        """
        self.kill()
        for command in (["run", *self._rest, "--once"], ["verify", *self._rest]):
            done = subprocess.run(
                [*self._command, *command], cwd=self._folder, capture_output=True, text=True, timeout=STOP_S
            )
            if done.returncode:
                self.problems.append(f"sink {command[0]} ended with {done.returncode}: {done.stderr[-500:]}")
        return self.problems

    def sample(self) -> tuple[int, dict[str, str]] | None:
        """The store's position, and its values by key; None before the first batch. The product does not read them."""
        with closing(sqlite3.connect(self._folder / "store", timeout=STOP_S, isolation_level=None)) as database:
            database.execute("BEGIN")
            try:
                found = database.execute("SELECT next FROM raftlog_sinks").fetchall()
                rows = database.execute("SELECT key, value FROM copy").fetchall()
            except sqlite3.OperationalError as error:
                if "no such table" not in str(error):
                    raise
                return None
        return (found[0][0], dict(rows)) if found else None

    @property
    def log(self) -> Path:
        """What the runners print."""
        return self._folder / "runners.log"

    def _tail(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-500:].strip()


def end(process: subprocess.Popen[bytes]) -> int:
    """SIGKILL; the exit code, which is that of its own end if it came before."""
    process.kill()
    return process.wait()
