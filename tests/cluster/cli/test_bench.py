"""`raftlog bench` measures a running cluster, compares its runs, cleans up, and refuses before it has written a key."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest

from raftlog.cluster.cli.bench import BenchOptions, BenchRun, Times, compared, drawn
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.config.joining import TLS_FOLDER
from raftlog.cluster.node.first_admin import make_first_admin
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.security.authority import make_client
from tests.cluster.cli.test_cli import Running
from tests.support import HANG_S, RAFTLOG, free_port, variables_of


def keys_of(client: SyncClient) -> list[bytes]:
    """Of all loads."""
    return [item.key for item in client.range(prefix=b"raftlog-bench/")]


def test_two_runs_are_compared(cli: Running, tmp_path: Path) -> None:
    """The first run leaves its figures in the file, and no key; each client writes first, then it reads. The second
    prints the difference to it, unless its options are others."""
    file = tmp_path / "bench.json"
    words = ["bench", cli.url, "--clients", "2", "--seconds", "1", "--size", "10", "--file", str(file)]
    first = cli.json(*words, "--reads", "100")
    assert [row["kind"] for row in first["changes"]] == ["write", "read"]
    assert all("per_s_change" not in row for row in first["changes"])
    kept = msgspec.json.decode(file.read_bytes(), type=BenchRun)
    assert kept.options == BenchOptions(2, 10, 100)
    for figures in kept.figures:
        assert figures.count == sum(count for _, count in figures.histogram) > 0
        assert 0 < figures.p50_ms <= figures.p99_ms <= figures.p999_ms <= figures.max_ms
        assert figures.failed == {}
    second = cli.json(*words, "--reads", "100")
    assert second["prefix"] != first["prefix"]
    assert all({"per_s_change", "p99_change"} <= row.keys() for row in second["changes"])
    other = cli.run(*words, "-o", "table")
    assert other.exit_code == 0, other.output
    assert "not compared: the last run had 2 clients, 10 bytes, 100 % reads" in other.stderr
    assert "write, ms" in other.stdout
    with SyncClient(cli.url) as client:
        assert keys_of(client) == []


def test_the_state_folder_has_the_last_run_of_each_cluster(cli: Running, tmp_path: Path) -> None:
    """Without --file, in a file that the log's id names."""
    run = cli.json("bench", cli.url, "--clients", "1", "--seconds", "0.1")
    assert run["file"] == str(tmp_path / "state/raftlog/bench" / f"{run['log']}.json")
    assert Path(run["file"]).exists()


def test_bad_input_is_one_sentence(cli: Running, tmp_path: Path) -> None:
    """A wrong URL, no node, a file that is something else, a number out of range; nothing is written."""
    foreign = tmp_path / "foreign"
    foreign.write_text("mine")
    before = cli.json("status")["revision"]
    nothing = f"http://127.0.0.1:{free_port()}"
    for words, code, problem in [
        (["bench"], 2, "Missing argument"),
        (["bench", "nowhere"], 2, "'nowhere' is not the URL of a node; write it as http://HOST:PORT"),
        (["bench", nothing], 5, f"{nothing}: connection refused"),
        (["bench", cli.url, "--file", str(foreign)], 2, "is no result of `raftlog bench`"),
        (["bench", cli.url, "--clients", "0"], 2, "--clients"),
        (["bench", cli.url, "--reads", "101"], 2, "--reads"),
    ]:
        result = cli.run(*words)
        assert result.exit_code == code, result.output
        assert problem in result.stderr
    assert foreign.read_text() == "mine"
    assert cli.json("status")["revision"] == before


@pytest.mark.serial
@pytest.mark.timeout(300)
def test_rights_and_ctrl_c(tmp_path: Path) -> None:
    """With access control a user without the grant is refused before the load, by the name of the grant. Ctrl-C ends a
    load with 130, and its keys are deleted all the same."""
    with LocalCluster(tmp_path / "nodes", 1, secure=True) as local:
        local.restore()
        make_first_admin(local)
        make_client(local.folder / TLS_FOLDER, "guest")

        def begin(user: str) -> subprocess.Popen[str]:
            own = variables_of(local.tls_files(f"client-{user}"))
            return subprocess.Popen(
                [*RAFTLOG, "bench", local.url(1), "--clients", "2"],
                env=os.environ | own | {"XDG_STATE_HOME": str(tmp_path)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )

        with SyncClient(local.urls, tls=local.tls_files()) as client:
            before = client.status().revision
            refused = begin("guest")
            _, problem = refused.communicate(timeout=HANG_S)
            assert refused.returncode == 9
            assert "guest" in problem
            assert client.status().revision == before

            stopped = begin("operator")
            assert stopped.stderr is not None
            assert "2 clients write below raftlog-bench/" in stopped.stderr.readline()
            stopped.send_signal(signal.SIGINT)
            assert stopped.communicate(timeout=HANG_S) == ("", "")
            assert stopped.returncode == 130
            assert keys_of(client) == []
            assert client.status().revision > before
    assert not list((tmp_path / "raftlog").glob("bench/*"))


def test_percentiles_are_right_within_steps() -> None:
    """Against the sorted times themselves: at most 2.2 % above them, and never beyond the slowest."""
    chance = random.Random(7)
    times = Times()
    seconds = sorted(chance.lognormvariate(-6, 1) for _ in range(10_000))
    for each in seconds:
        times.add(each)
    figures = times.figures("write", 10.0)
    assert (figures.count, figures.per_s) == (10_000, 1_000.0)
    for share, found in ((0.5, figures.p50_ms), (0.99, figures.p99_ms), (0.999, figures.p999_ms)):
        exact = seconds[int(share * len(seconds)) - 1] * 1e3
        assert exact * 0.999 <= found <= exact * 1.023
    assert figures.max_ms == round(seconds[-1] * 1e3, 3)


def test_a_difference_needs_the_same_options() -> None:
    """In percent of the last run; none against other options, or against a kind that the last run did not have."""
    times = Times()
    times.add(0.002)

    def run(per_s: float, clients: int) -> BenchRun:
        figures = msgspec.structs.replace(times.figures("write", 1.0), per_s=per_s)
        return BenchRun(0, "log", "p/", 1.0, BenchOptions(clients, 10, 0), "1", 0.1, [figures])

    (row,) = compared(run(150.0, 2), run(100.0, 2))
    assert (row["per_s_change"], row["p99_change"]) == (50.0, 0.0)
    (row,) = compared(run(150.0, 2), run(100.0, 3))
    assert "per_s_change" not in row
    assert json.loads(json.dumps(row))["per_s"] == 150.0


def test_a_histogram_has_a_line_for_each_doubling() -> None:
    """With the share of each, and bars in proportion."""
    lines = drawn([(1.5, 1), (2.0, 1), (3.9, 2), (4.0, 4)])
    assert [line.split()[:2] for line in lines] == [["2", "25.0"], ["4", "75.0"]]
    assert lines[1].count("█") == 40
