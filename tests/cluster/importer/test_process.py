"""`raftlog import` as a process that is interrupted: the same command continues, and each line is in the log once."""

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.demo.story import COMMAND
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.support import HANG_S

pytestmark = pytest.mark.serial

LINES = 4_000
BATCH = 40


def start(local: LocalCluster, *arguments: str, stdin: int | None = None) -> "subprocess.Popen[bytes]":
    """An import that reports every batch on its standard output."""
    command = [*COMMAND, "import", *arguments, "--batch", str(BATCH), "-o", "jsonl", "-e", local.url(1)]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def values(local: LocalCluster) -> list[bytes | None]:
    """The imported values in the log, in order. The put is the schema."""
    with SyncClient(local.url(1)) as client:
        found = list(client.log(1))
    assert [record.operation for record in found].count("put") == 1
    return [record.value for record in found if record.operation == "append"]


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
        assert re.search(r"interrupted: the log has .*quakes\.csv; the same command continues", message["error"])
        second = start(local, str(source), "--time", "DateTime")
        output, told = second.communicate(timeout=HANG_S)
        assert second.returncode == 0, told
        last = json.loads(output.splitlines()[-1])
        assert (last["records"], last["without_time"], last["before"] > 0) == (LINES, 0, True)
        assert b"an earlier run has imported" in told
    assert values(local) == rows.encode().splitlines()
