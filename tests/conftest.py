"""Fixtures that every test may use, and the settings of hypothesis."""

import signal
from pathlib import Path

import hypothesis
import pytest

from raftlog.chaos.deploy import toxiproxy_server
from raftlog.spark_export.runtime import java
from tests import support

pytest_plugins = ["pytester", "tests.plugin", "tests.compiled", "tests.durable"]

# No deadline per example: on two shared cores it only ever finds the neighbour. The blob repeats a failure anywhere.
hypothesis.settings.register_profile("raftlog", deadline=None, print_blob=True)
hypothesis.settings.load_profile("raftlog")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell's `make test &` leaves it so, and children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def free_port() -> int:
    """A free TCP port of 127.0.0.1; `tests.support.free_ports` gives several."""
    return support.free_port()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """An empty folder for the data of one cluster."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def java_home() -> Path:
    """A Java runtime for Spark; skips (in CI: fails) without one."""
    try:
        return java.java_home()
    except java.JavaNotFoundError as error:
        pytest.skip(f"no Java: {error}")


@pytest.fixture(scope="session")
def toxiproxy_path() -> Path:
    """The Toxiproxy server's executable; skips (in CI: fails) without it."""
    try:
        return toxiproxy_server.server_path()
    except toxiproxy_server.ToxiproxyNotFoundError as error:
        pytest.skip(f"no Toxiproxy: {error}")
