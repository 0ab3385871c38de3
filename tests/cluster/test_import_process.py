"""`raftlog import` as a process that is killed: the lines are in the log once and in order all the same."""

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.client_sync import SyncClient
from cluster.demo import COMMAND
from cluster.local_cluster import LocalCluster
from tests.cluster.nodes import QUICK
from tests.support import free_ports

pytestmark = pytest.mark.serial

LINES = 4_000
BATCH = 40


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCluster]:
    """One node that serves: what is killed here is the importer."""
    cluster = LocalCluster(tmp_path / "cluster", 1, settings=QUICK, ports=free_ports(2))
    cluster.start()
    cluster.wait_ready()
    yield cluster
    cluster.kill(1)


def start(local: LocalCluster, *arguments: str, stdin: int | None = None) -> "subprocess.Popen[bytes]":
    """An import that tells every batch on its standard output."""
    command = [*COMMAND, "import", *arguments, "--batch", str(BATCH), "-o", "jsonl", "-e", local.url(1)]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def kill_after(process: "subprocess.Popen[bytes]", batches: int) -> None:
    """SIGKILL once so many batches were told; what it does then, sending, noting or reading, is left to chance."""
    assert process.stdout is not None
    for _ in range(batches):
        assert process.stdout.readline(), "it ended before it was killed"
    process.kill()
    process.communicate()


def values(local: LocalCluster) -> list[bytes | None]:
    """What the log holds, in order."""
    with SyncClient(local.url(1)) as client:
        return [record.value for record in client.log(1)]


def test_an_import_that_is_killed_again_and_again(local: LocalCluster, tmp_path: Path) -> None:
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
    _, said = last.communicate(timeout=60)
    assert last.returncode == 0, said
    assert values(local) == expected
    done = start(local, str(source), "--key", "n")
    _, said = done.communicate(timeout=60)
    assert (done.returncode, b"--again" in said) == (1, True), said


def test_a_killed_import_of_standard_input_is_refused(local: LocalCluster, tmp_path: Path) -> None:
    """What was read from a pipe is gone: the second start says what can be done, and appends nothing."""
    state = ("--state", str(tmp_path / "state"), "--rejects", str(tmp_path / "rejects"), "--format", "ndjson")
    first = start(local, "-", *state, stdin=subprocess.PIPE)
    assert first.stdin is not None
    first.stdin.write(b"".join(b'{"n": %d}\n' % number for number in range(4 * BATCH)))
    first.stdin.flush()  # and left open: it waits for more
    kill_after(first, 2)
    before = values(local)
    second = start(local, "-", *state, stdin=subprocess.PIPE)
    _, said = second.communicate(b'{"n": 1}\n', timeout=60)
    assert (second.returncode, b"--again" in said) == (1, True), said
    assert values(local) == before
