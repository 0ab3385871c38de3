"""Runs servers for the long tests of object stores: versitygw, a real S3 server, and Azurite, Azure's emulator.

`.ci/store` obtains both. Either can be killed.
"""

import base64
import hashlib
import hmac
import os
import secrets
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

import pytest

from tests.support import HANG_S, free_port, wait_until

STORE = Path(__file__).parents[1] / ".tools" / "store"
SERVER, AZURITE = STORE / "versitygw", STORE / "node_modules" / ".bin" / "azurite-blob"
USER, SECRET = "user", "secret"


@dataclass
class Gateway:
    """A server, with its objects as files in a folder."""

    folder: Path
    port: int
    arguments: list[str]
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Until it takes connections."""
        keys = {"ROOT_ACCESS_KEY": USER, "ROOT_SECRET_KEY": SECRET}
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(self.arguments, env=os.environ | keys, stdout=quiet, stderr=quiet)
        wait_until(self.answers, HANG_S, what=self.arguments[0])

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
    port = free_port()
    server = Gateway(folder, port, [str(SERVER), "--port", f"127.0.0.1:{port}", "posix", str(folder)])
    address = f"http://127.0.0.1:{port}"
    for name, value in {"ACCESS_KEY_ID": USER, "SECRET_ACCESS_KEY": SECRET, "ENDPOINT_URL": address}.items():
        patch.setenv(f"AWS_{name}", value)
    (folder / "bucket").mkdir(parents=True)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def azurite(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Azure's emulator with one container, `bucket`, and its address in the environment. Skips where it is missing."""
    if not AZURITE.exists():
        pytest.skip("no emulator of Azure: .ci/store azurite obtains it")
    port, account, key = free_port(), "account", secrets.token_bytes(32)
    address, coded = f"http://127.0.0.1:{port}/{account}", base64.b64encode(key).decode()
    patch.setenv("AZURITE_ACCOUNTS", f"{account}:{coded}")
    for name, value in {"STORAGE_ACCOUNT_NAME": account, "STORAGE_ACCOUNT_KEY": coded, "ENDPOINT": address}.items():
        patch.setenv(f"AZURE_{name}", value)
    options = ["--location", str(folder), "--blobPort", str(port), "--silent", "--skipApiVersionCheck"]
    server = Gateway(folder, port, [str(AZURITE), *options])
    server.start()
    try:
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        lines = ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in headers.items())]
        lines += [f"/{account}/{account}/bucket", "restype:container"]
        signature = base64.b64encode(hmac.digest(key, "\n".join(lines).encode(), hashlib.sha256)).decode()
        headers["Authorization"] = f"SharedKey {account}:{signature}"
        request = urllib.request.Request(f"{address}/bucket?restype=container", method="PUT", headers=headers)
        urllib.request.urlopen(request, timeout=HANG_S).close()
        yield
    finally:
        server.kill()
