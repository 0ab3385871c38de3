"""`raftlog import` as a process that is killed: the lines are in the log once and in order all the same."""

import json
import os
import random
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.demo.story import COMMAND
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.cluster.nodes import QUICK
from tests.support import HANG_S

pytestmark = pytest.mark.serial

LINES = 4_000
BATCH = 40


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCluster]:
    """One node that serves: the tests kill the importer."""
    cluster = LocalCluster(tmp_path / "cluster", 1, settings=QUICK)
    cluster.restore()
    yield cluster
    cluster.kill(1)


def start(local: LocalCluster, *arguments: str, stdin: int | None = None) -> "subprocess.Popen[bytes]":
    """An import that reports every batch on its standard output."""
    command = [*COMMAND, "import", *arguments, "--batch", str(BATCH), "-o", "jsonl", "-e", local.url(1)]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def kill_after(process: "subprocess.Popen[bytes]", batches: int) -> None:
    """SIGKILL once that many batches were reported; whether it then sends, notes or reads is left to chance."""
    assert process.stdout is not None
    for _ in range(batches):
        assert process.stdout.readline(), "it ended before it was killed"
    process.kill()
    process.communicate()


def values(local: LocalCluster) -> list[bytes | None]:
    """The imported values in the log, in order. The put is the schema."""
    with SyncClient(local.url(1)) as client:
        found = list(client.log(1))
    assert [record.operation for record in found].count("put") == 1
    return [record.value for record in found if record.operation == "append"]


def test_an_import_killed_again_and_again_is_exactly_once(local: LocalCluster, tmp_path: Path) -> None:
    """Killed four times at moments of chance, each time started as before: every line once, in order; and a last start
    says that there is nothing left to do."""
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    chance = random.Random(seed)
    expected = [b'{"n": %d}' % number for number in range(LINES)]
    source = tmp_path / "lines.ndjson"
    source.write_bytes(b"\n".join(expected) + b"\n")
    for _ in range(4):
        kill_after(start(local, str(source), "--key", "n"), chance.randint(1, 15))
    last = start(local, str(source), "--key", "n")
    _, said = last.communicate(timeout=HANG_S)
    assert last.returncode == 0, said
    assert values(local) == expected
    done = start(local, str(source), "--key", "n")
    _, said = done.communicate(timeout=HANG_S)
    assert (done.returncode, b"an earlier run has imported all of it" in said) == (0, True), said
    assert values(local) == expected


@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_import_says_how_to_continue_and_counts_both_runs(
    local: LocalCluster, tmp_path: Path, way: signal.Signals
) -> None:
    """Ctrl-C, or a stop by a supervisor: how much is in, and the same command. The second result counts all records."""
    source = tmp_path / "quakes.csv"
    rows = "".join(f"2016/01/01 00:30:{n % 60:02d}.{n % 100:02d},{n}\n" for n in range(LINES))
    source.write_text(f"DateTime,n\n{rows}")
    first = start(local, str(source), "--time", "DateTime")
    assert first.stdout is not None
    assert first.stdout.readline()
    first.send_signal(way)
    rest, told = first.communicate(timeout=HANG_S)
    done = json.loads((rest or b"{}").splitlines()[-1])["done"] if rest else False
    if not done:  # on a quick machine the import may have ended first
        message = json.loads(told.splitlines()[-1])
        assert message["exit"] == 130
        assert re.search(r"interrupted: .*quakes\.csv is in the log; the same command continues", message["error"])
        second = start(local, str(source), "--time", "DateTime")
        output, told = second.communicate(timeout=HANG_S)
        assert second.returncode == 0, told
        last = json.loads(output.splitlines()[-1])
        assert (last["records"], last["without_time"], last["before"] > 0) == (LINES, 0, True)
        assert b"imported by an earlier run" in told
    assert values(local) == rows.encode().splitlines()
