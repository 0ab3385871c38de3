"""`raftlog up` as a process: what it refuses, and what it says when a node ends."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from raftlog.cluster.api.access import AccessIn
from raftlog.cluster.cli import nodes as cli_local
from raftlog.cluster.cli.commands import build
from raftlog.cluster.cli.frame.common import CommandFailed
from raftlog.cluster.cli.frame.stopping import StopSignal
from raftlog.cluster.cli.nodes import PEER_PORT_OFFSET, browse
from raftlog.cluster.client.access_requests import change, show
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.demo.story import COMMAND
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.cluster.nodes import QUICK
from tests.support import HANG_S, port_for_up, raftlog, wait_until

pytestmark = pytest.mark.serial


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A state folder of its own, temporary data in the test's folder, and no cluster named by the machine."""
    found = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state"), "TMPDIR": str(tmp_path)}
    found.pop("RAFTLOG_ENDPOINTS", None)
    return found


@contextmanager
def up(environment: dict[str, str], *arguments: str) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A `raftlog up` of one node that serves, and its node's pid."""
    process = subprocess.Popen(
        [*COMMAND, "up", *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        seen = [process.stdout.readline()]
        while "  pid " not in seen[-1]:
            assert seen[-1], "".join(seen)
            seen.append(process.stdout.readline())
        yield process, int(seen[-1].split()[-1])
    finally:
        process.kill()
        process.communicate()
        nodes = [Path("/proc", line.split()[-1]) for line in seen if "  pid " in line]
        wait_until(lambda: not any(map(is_running, nodes)), what="its nodes, and their ports, are gone")


def is_running(process: Path) -> bool:
    """Whether the process of that folder in /proc runs: one that ended and was not waited for does not."""
    try:
        return ") Z " not in (process / "stat").read_text()
    except OSError:
        return False


def refusal(environment: dict[str, str], *arguments: str) -> str:
    """What an `up` says that does not come up."""
    done = raftlog("up", *arguments, environment=environment)
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def access_line(environment: dict[str, str], data: Path) -> str:
    """What an `up` of a cluster with TLS says about access control, before it says how to use the cluster."""
    said = said_by(environment, "--secure", "--data", str(data))
    [line] = [line for line in said.splitlines() if line.startswith("access control is ")]
    return line


def said_by(environment: dict[str, str], *arguments: str) -> str:
    """What an `up` says on standard error that comes up and is stopped."""
    process = subprocess.Popen(
        [*COMMAND, "up", *arguments], env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("node 1 "), process.stderr.read()
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=HANG_S)[1]
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, said
    return said


@pytest.fixture
def unfinished(tmp_path: Path) -> LocalCluster:
    """What a first start of `up --secure` leaves that ended before it made the first admin: data and certificates."""
    port = port_for_up()
    return LocalCluster(tmp_path / "data", 1, secure=True, ports=(port + PEER_PORT_OFFSET, port))


def token_of(cluster: LocalCluster) -> Path:
    """The file with the token of the first admin."""
    return cluster.folder / "tls" / "operator.token"


def test_a_secure_cluster_whose_first_start_did_not_finish_gets_its_first_admin_at_the_next(
    unfinished: LocalCluster, environment: dict[str, str]
) -> None:
    """Each start says whether access control is on. If an admin has switched it off, it stays off, and the line has the
    command that switches it on."""
    token = token_of(unfinished)
    for _ in range(2):
        line = access_line(environment, unfinished.folder)
        assert line == f"access control is on; the token of its first admin is in {token}"
    with unfinished as cluster:
        cluster.restore()
        with SyncClient(cluster.urls, tls=cluster.tls_files(), token_file=str(token), sessions=False) as client:
            assert [user.name for user in client.call(show()).users] == ["operator"]
            client.call(change(AccessIn("disable")))
    line = access_line(environment, unfinished.folder)
    assert line.startswith("access control is off: ")
    assert line.endswith(f"raftlog access enable --config {unfinished.settings_file(1)}")


def test_the_token_of_a_start_that_was_killed_is_replaced(
    unfinished: LocalCluster, environment: dict[str, str]
) -> None:
    """Its file was made, and access control was not set up: the file proves nothing."""
    token = token_of(unfinished)
    token.write_text("never counted\n")
    assert access_line(environment, unfinished.folder).startswith("access control is on")
    assert token.read_text().startswith("rl_")


def test_one_folder_has_one_up(tmp_path: Path, environment: dict[str, str]) -> None:
    """A second `up --data` of a running cluster is refused: it would take the first one's nodes for its own. So is one
    whose ports somebody has, one that asks for another shape than the cluster in the folder has, and one inside a data
    folder of that cluster, where it makes nothing."""
    data = tmp_path / "data"
    port = str(port_for_up())
    with up(environment, "--nodes", "1", "--data", str(data), "--port", port):
        assert "another `raftlog up` runs the cluster" in refusal(environment, "--data", str(data))
        copy = tmp_path / "copy"
        copy.mkdir()
        (copy / "cluster.toml").write_bytes((data / "cluster.toml").read_bytes())
        assert "is in use, where this cluster has a node" in refusal(environment, "--data", str(copy))
    assert "leave --nodes out" in refusal(environment, "--data", str(data), "--nodes", "2")
    assert "leave --port out" in refusal(environment, "--data", str(data), "--port", "1")
    inside = data / "node-1" / "inside"
    assert "the data folder of a node; name a folder outside it" in refusal(environment, "--data", str(inside))
    assert not inside.exists()


def test_a_second_cluster_changes_nothing_for_other_commands(tmp_path: Path, environment: dict[str, str]) -> None:
    """Commands stay with the cluster that ran first; the second one reports that, and names the URL that commands need
    for it. When the first has ended, commands name the second and go to it only on request.
    """
    ports = [str(port_for_up()) for _ in range(2)]
    first, second = (f"http://127.0.0.1:{port}" for port in ports)
    asked = partial(raftlog, environment=environment)
    with up(environment, "--nodes", "1", "--port", ports[1]) as (running, _):
        assert running.stdout is not None
        assert "put hello" in "".join(running.stdout.readline() for _ in range(4))
    with up(environment, "--nodes", "1", "--port", ports[0]):
        assert asked("put", "whose", "first").returncode == 0
        with up(environment, "--nodes", "1", "--port", ports[1]) as (running, _):
            assert running.stdout is not None
            said = "".join(running.stdout.readline() for _ in range(4))
            assert f"export RAFTLOG_ENDPOINTS={second}" in said
            assert f"the cluster at {first}" in said
            assert asked("get", "whose", "-o", "raw").stdout == "first"
            assert asked("get", "whose", "-e", second).returncode == 3
    with up(environment, "--nodes", "1", "--port", ports[0]) as (running, _):
        with up(environment, "--nodes", "1", "--port", ports[1]):
            running.send_signal(signal.SIGINT)
            running.wait(30)
            lost = asked("get", "whose")
            assert lost.returncode == 5
            assert f"another one runs at {second}" in lost.stderr
            assert f"-e {second}" in lost.stderr
            assert asked("put", "whose", "second", "-e", second).returncode == 0


def test_up_prints_its_first_step_at_once(environment: dict[str, str]) -> None:
    """Its first line comes before any node is started, and each node is named when it serves."""
    arguments = [*COMMAND, "up", "--nodes", "1", "--port", str(port_for_up())]
    process = subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == "starting nodes: 1\n"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        assert children.read_text() == ""
        assert process.stderr.readline().startswith("node 1 serves at http://127.0.0.1:")
    finally:
        process.kill()
        process.communicate()


def test_two_nodes_are_said_to_tolerate_no_failure(tmp_path: Path, environment: dict[str, str]) -> None:
    """Of a cluster on one machine, and of one on two."""
    local = LocalCluster(tmp_path / "two", 2, settings=QUICK)
    process = subprocess.Popen(
        [*COMMAND, "up", "--data", str(local.folder)], env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        assert process.stdout is not None
        said = [process.stderr.readline() for _ in range(4)]
        assert said[3].startswith(b"two nodes tolerate no failure"), said
        while b"  pid " not in process.stdout.readline():  # Ctrl-C before that ends the start
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 0
    finally:
        process.kill()
        process.communicate()
    made = CliRunner().invoke(build("create"), ["create", "10.0.0.1", "10.0.0.2", "--folder", str(tmp_path / "made")])
    assert "two nodes tolerate no failure" in made.stderr


def test_a_node_that_ends_is_reported_with_the_fix(tmp_path: Path, environment: dict[str, str]) -> None:
    """How it ended, its log and the command that starts it; when none is left, `up` ends with 1. That it cannot note
    where the cluster is (here a file is in the way) is a warning, not the end."""
    (tmp_path / "state").write_text("in the way")
    arguments = ("--nodes", "1", "--data", str(tmp_path / "data"), "--port", str(port_for_up()))
    with up(environment, *arguments) as (process, pid):
        os.kill(pid, signal.SIGKILL)
        said, _ = process.communicate(timeout=HANG_S)
    assert "node 1 was killed by SIGKILL" in said
    assert f"raftlog node --config {tmp_path}/data/node-1.toml" in said
    assert "every node of this cluster has ended" in said
    assert process.returncode == 1


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, environment: dict[str, str]) -> None:
    """The operating system's reason with the path and what it means, without a traceback."""
    (tmp_path / "file").write_text("")
    said = refusal(environment, "--data", str(tmp_path / "file" / "sub"))
    assert "file/sub: Not a directory; a part of this path is a file" in said


def test_a_node_that_a_start_repairs_is_restarted_a_few_times(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit codes 16 and 17 ask for a start; a node that ends so again and again is left to a person."""

    class Ending:
        nodes = (1,)
        starts = 0

        def pid(self, node: int) -> None:
            return None

        def exit_code(self, node: int) -> int:
            return (NodeExit.DAMAGED, NodeExit.DIVERGED)[self.starts % 2]

        def start_node(self, node: int) -> None:
            self.starts += 1

        def settings_file(self, node: int) -> str:
            return "node-1.toml"

        log_file = settings_file

    cluster, stop = Ending(), StopSignal()
    monkeypatch.setattr(stop, "wait", lambda seconds: False)
    with pytest.raises(CommandFailed, match="every node of this cluster has ended"):
        cli_local._show_until(stop, Console(highlight=False), cluster, {1: "http://127.0.0.1:1"}, "")
    assert cluster.starts == cli_local.STARTS_AGAIN_MAX
    said = capsys.readouterr().out
    assert said.count("it is started again and repairs its files") == cli_local.STARTS_AGAIN_MAX
    assert "start it again with: raftlog node" in said


def test_without_a_terminal_each_trouble_is_a_line_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And its end; a name in brackets is no markup."""

    class Running:
        nodes = (1,)

        def pid(self, node: int) -> int:
            return 7

    stop, told = StopSignal(), iter([None, "full [disk]", "full [disk]", None, None])

    def look(urls: dict[int, str], timeout_s: float) -> dict[str, str | None]:
        trouble = next(told, "stop")
        if trouble == "stop":
            stop.set()
        return {"trouble": None if trouble == "stop" else trouble}

    monkeypatch.setattr(stop, "wait", lambda seconds: False)
    monkeypatch.setattr(cli_local, "look", look)
    cli_local._show_until(stop, Console(highlight=False), Running(), {1: "http://127.0.0.1:1"}, "")
    assert capsys.readouterr().out.splitlines()[-2:] == ["full [disk]", "the trouble is over"]


def test_up_opens_the_console(environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--open` gives its address to the browser that BROWSER names. Without a display a sentence has the address, and
    so has the output without the option."""
    seen = tmp_path / "seen"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {seen}.new && mv {seen}.new {seen}\n')
    browser.chmod(0o700)
    port = port_for_up()
    url = f"http://127.0.0.1:{port}/"
    said = said_by(environment | {"BROWSER": f"{browser} %s"}, "--nodes", "1", "--port", str(port), "--open")
    assert f"\n{url} is open in a browser\n" in said
    assert seen.read_text() == f"{url}\n"
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert browse(url[:-1], opens=True) == f"no browser with a window was found here: open {url} in one"
    assert browse(url[:-1], opens=False) == f"{url} shows it in a browser"
