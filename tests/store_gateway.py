"""Runs versitygw for the long tests of object stores: a real S3 server, which can be killed (`.ci/store` builds it)."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import free_port, wait_until

SERVER = Path(__file__).parents[1] / ".tools" / "store" / "versitygw"
USER, SECRET = "user", "secret"


@dataclass
class Gateway:
    """versitygw, with its objects as files in a folder."""

    folder: Path
    port: int
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Until it takes connections."""
        keys = {"ROOT_ACCESS_KEY": USER, "ROOT_SECRET_KEY": SECRET}
        arguments = [str(SERVER), "--port", f"127.0.0.1:{self.port}", "posix", str(self.folder)]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(arguments, env=os.environ | keys, stdout=quiet, stderr=quiet)
        wait_until(self.answers, 60, what="versitygw")

    def answers(self) -> bool:
        """Whether it takes connections."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 5):
                return True
        except OSError:
            return False

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()


@contextmanager
def gateway(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    """The server with one bucket, and its address in the environment. Skips where it was not built."""
    if not SERVER.exists():
        pytest.skip("no S3 server: .ci/store builds versitygw")
    server = Gateway(folder, free_port())
    address = f"http://127.0.0.1:{server.port}"
    for name, value in {"ACCESS_KEY_ID": USER, "SECRET_ACCESS_KEY": SECRET, "ENDPOINT_URL": address}.items():
        patch.setenv(f"AWS_{name}", value)
    (folder / "bucket").mkdir(parents=True)
    server.start()
    try:
        yield server
    finally:
        server.kill()
