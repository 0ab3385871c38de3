"""`raftlog top` shows what the nodes say of themselves: also a dead node, without a terminal, and in a narrow one."""

from __future__ import annotations

import json
import math
import os
import pty
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from raftlog.cluster.cli.top import TOP, drawn, prefix_of, quantile
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.config.joining import TLS_FOLDER
from raftlog.cluster.node.first_admin import make_first_admin
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.security.authority import make_client
from tests.support import HANG_S, RAFTLOG, raftlog, variables_of, wait_until

ONCE = ["top", "--interval", "0.5", "--once", "-o", "json"]


def environment(local: LocalCluster, user: str) -> dict[str, str]:
    """Of a command of that user."""
    return {"RAFTLOG_ENDPOINTS": ",".join(local.urls), **variables_of(local.tls_files(f"client-{user}"))}


def run(local: LocalCluster, user: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A command that succeeds."""
    done = raftlog(*words, environment=environment(local, user))
    assert done.returncode == 0, done.stderr
    return done


def seen(local: LocalCluster, user: str) -> dict[str, Any]:
    """One view in which the two nodes that run have answered in time, twice."""

    def look() -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(run(local, user, *ONCE).stdout)
        roles = sorted(row["role"] for row in shown["nodes"])
        rates = [row for row in shown["nodes"] if row.get("writes_per_s") is not None]
        return shown if roles == ["follower", "leader", "unreachable"] and len(rates) == 2 else {}

    return wait_until(look, HANG_S, what="a view of both nodes")


def on_terminal(local: LocalCluster) -> tuple[int, bytes]:
    """The exit code of the live view after Ctrl-C in a terminal, and all that it wrote there."""
    ours, terminal = pty.openpty()
    words = [*RAFTLOG, "top", "--interval", "0.2"]
    with subprocess.Popen(
        words,
        env=os.environ | environment(local, "operator") | {"TERM": "xterm"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    ) as process:
        os.close(terminal)
        screen = b""
        while b"leader" not in screen:
            screen += os.read(ours, 1 << 16)
        process.send_signal(signal.SIGINT)
        with suppress(OSError):  # how Linux says that the other end of a terminal is closed
            while more := os.read(ours, 1 << 16):
                screen += more
    os.close(ours)
    return process.returncode, screen


@pytest.mark.serial
@pytest.mark.timeout(300)
def test_a_cluster_with_a_dead_node(tmp_path: Path) -> None:
    """Three nodes with TLS and access control, writes under two prefixes, a consumer group; then a node is killed. One
    view has all of it in JSON. The stream without a terminal has one line a view, and Ctrl-C ends it without a word. In
    a terminal it is drawn in place, and Ctrl-C leaves the terminal as it was. A user with the role `monitor` sees
    everything but the prefixes, and a note has the reason."""
    with LocalCluster(tmp_path / "nodes", 3, secure=True) as local:
        local.restore()
        make_first_admin(local)
        make_client(local.folder / TLS_FOLDER, "watcher")
        files = local.tls_files()
        run(local, "operator", "user", "set", "watcher", "--role", "monitor")
        with SyncClient(local.urls, tls=files) as client:
            client.consumer("billing").claim()
            for number in range(9):
                client.put(f"orders/{number}".encode(), b"v")
            client.append(b"without a key")
        killed = next(node for node in local.nodes if node != local.leader())
        local.kill(killed)

        shown = seen(local, "operator")
        assert [row["node"] for row in shown["nodes"] if row["role"] == "unreachable"] == [killed]
        (leader,) = (row for row in shown["nodes"] if row["role"] == "leader")
        assert leader["disk_free_mib"] > 0
        assert {"writes_per_s", "reads_per_s"} <= leader.keys()
        assert shown["prefixes"] == [
            {"prefix": "orders/", "writes": 9, "percent": 90.0},
            {"prefix": "", "writes": 1, "percent": 10.0},
        ]
        assert [(row["name"], row["lag"] > 0) for row in shown["groups"]] == [("billing", True)]
        assert shown["notes"] == []
        assert "explain" in shown["trouble"]

        lines = subprocess.Popen(
            [*RAFTLOG, "top", "--interval", "0.5"],
            env=os.environ | environment(local, "operator"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert lines.stdout is not None
        assert lines.stdout.readline().split() == [column.name for column in TOP.columns]
        while lines.stdout.readline().split("\t")[3:5] != ["2", "3"]:  # on a busy machine a node may answer late
            assert lines.poll() is None
        lines.send_signal(signal.SIGINT)
        _, problems = lines.communicate(timeout=HANG_S)
        assert (lines.returncode, problems) == (130, "")

        code, screen = on_terminal(local)
        assert code == 130
        assert b"unreachable" in screen
        assert b"Traceback" not in screen
        assert screen.count(b"\x1b[?25l") == screen.count(b"\x1b[?25h") == 1  # the cursor is hidden, and shown again

        shown = seen(local, "watcher")
        assert shown["prefixes"] == []
        (note,) = shown["notes"]
        assert note.startswith("hottest prefixes are missing: ")
        assert shown["reads_per_s"] is not None


def test_a_narrow_terminal_has_the_columns_that_fit() -> None:
    """Every line of a view fits into 40, 80 and 140 columns, and the node with its role is always there."""
    from rich.console import Console

    node: dict[str, Any] = {
        "node": 1,
        "role": "leader",
        "term": 2,
        "committed": 10**7,
        "applied": 10**7,
        "lag": 0,
        "lag_seconds": 0.0,
    }
    node |= {"writes_per_s": 1234.5, "reads_per_s": 2345.6, "sync_p99_ms": 3.21, "disk_free_mib": 62403}
    shown: dict[str, Any] = {"leader": 1, "term": 2, "committed": 10**7, "writes_per_s": 1234.5, "reads_per_s": None}
    shown |= {"nodes": [node | {"url": "http://127.0.0.1:7001"}], "groups": [], "prefixes": [], "notes": []}
    shown |= {"routes": [{"route": "/v1/kv/{key}", "per_s": 5.0, "p50_ms": 1.0, "p99_ms": 9.0, "slow": 0}]}
    widths = {}
    for width in (40, 80, 140):
        console = Console(width=width, file=open(os.devnull, "w"), record=True)  # noqa: SIM115
        console.print(drawn(shown, width))
        console.file.close()
        lines = console.export_text().splitlines()
        assert max(map(len, lines)) <= width
        assert any(line.split()[:2] == ["1", "leader"] for line in lines)
        widths[width] = "".join(lines)
    assert "…" not in "".join(widths.values())
    assert "127.0.0.1" in widths[140]


def test_a_prefix_ends_with_the_last_separator() -> None:
    """`/`, `:` and `.`; a key without one is its own prefix."""
    keys = [b"orders/7", b"a/b:c", b"plain", b"", None]
    assert [prefix_of(key) for key in keys] == [b"orders/", b"a/b:", b"plain", b"", b""]


def test_a_quantile_lies_within_its_bucket() -> None:
    """As Prometheus computes it: between the bounds of the bucket, the last bound beyond it, None without events."""
    buckets = {0.1: 50.0, 0.2: 100.0, math.inf: 100.0}
    assert quantile(buckets, 0.5) == 0.1
    assert quantile(buckets, 0.75) == pytest.approx(0.15)
    assert quantile({0.1: 0.0, math.inf: 4.0}, 0.99) == 0.1
    assert quantile({0.1: 0.0, math.inf: 0.0}, 0.5) is None
    assert quantile({}, 0.5) is None
