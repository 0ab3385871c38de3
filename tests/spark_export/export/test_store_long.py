"""A Spark cluster exports into an S3 server: kills of executors, of the driver and of the server lose nothing."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from raftlog import NewRecord, SyncClient, arrow
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.stores.object_place import ChangedError, ObjectPlace
from raftlog.spark_export.export.manifest import find_manifest, read_manifest
from raftlog.spark_export.export.place import StorePlace
from tests.spark_export.export.exports import LAST, LOG, check
from tests.spark_export.server import Served, serving
from tests.spark_export.sink.kills import command, contents, kill_session, process_wait
from tests.spark_export.source.stream_chaos import processes_of
from tests.spark_export.source.test_stream_long import EXECUTOR, spark_cluster
from tests.store_gateway import Gateway, azurite, gateway
from tests.support import HANG_S

pytestmark = [pytest.mark.spark, pytest.mark.serial, pytest.mark.long, pytest.mark.timeout(3600)]

PLACE = StorePlace("s3://bucket/exports/log")
KILLS = ("executor", "driver", "store") * 2


def executors() -> set[int]:
    """The process ids of the executors that this test started."""
    return {pid for pid, _, line in processes_of(os.getpid()) if EXECUTOR in line}


def killed(arguments: list[str], server: Gateway, victim: str, changes: int) -> bool:
    """Runs the command, and kills the victim at the n-th change of the objects. True if the command came to its end."""
    process = subprocess.Popen(arguments, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        before = contents(server.folder)
        while changes and process.poll() is None:
            now = contents(server.folder)
            changes -= now != before
            before = now
            process_wait(process)
        if process.poll() is None:
            if victim == "executor" and (running := executors()):
                os.kill(min(running), signal.SIGKILL)
            elif victim == "store":
                server.kill()
                server.start()
            elif victim == "driver":
                return False
        assert process.stderr is not None
        trouble = process.stderr.read().decode()
        process.wait()
        assert process.returncode == 0, trouble[-3000:]
        return True
    finally:
        kill_session(process)


def indexes() -> list[int]:
    """What a reader by the manifest finds."""
    if find_manifest(PLACE) is None:
        return []
    found: list[int] = arrow.export(str(PLACE), columns=["index"], records="all").table().column("index").to_pylist()
    return found


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_a_spark_cluster_exports_into_a_store_through_kills(
    form: str,
    java_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """Two workers with folders of their own write into versitygw from three nodes. An executor, the driver or the
    server is killed at some change of the objects, in turns. The driver's death ends a run; the others' do not. After
    each, readers see every row up to some index once; at the end verify proves all, in this process and in Spark."""
    monkeypatch.setenv(
        "PYSPARK_SUBMIT_ARGS", "--conf spark.executor.memory=512m --conf spark.cores.max=2 pyspark-shell"
    )
    chance = random.Random(form)
    nodes = [Served(LOG, entries_per_chunk=7) for _ in range(3)]
    ended = 0
    with ExitStack() as stack:
        server = stack.enter_context(gateway(tmp_path / "objects", monkeypatch))
        urls = [stack.enter_context(serving(node)) for node in nodes]
        master = stack.enter_context(spark_cluster(java_home, tmp_path))
        limits = ("--batch-records", "25", "--records-per-file", "10", "--compact-files", "8")
        for number, victim in enumerate(KILLS):
            last = LAST * (number + 1) // len(KILLS)
            arguments = command("spark", Path("PLACE"), urls, last, "--master", master, "--format", form, *limits)
            arguments[arguments.index("PLACE")] = str(PLACE)
            ended += killed(arguments, server, victim, chance.randint(1, 12))
            found = indexes() if form == "parquet" else []
            assert found == list(range(1, len(found) + 1))
        assert killed(arguments, server, "nothing", 0)
        assert indexes() == list(range(1, LAST + 1))
        report = check(PLACE, urls[0])
        assert (report.findings, report.unproved) == ([], [])
        proof = [sys.executable, "-m", "raftlog.cluster.cli.main", "verify", str(PLACE), "--engine", "spark"]
        proof += ["--master", master, "--endpoints", ",".join(urls)]
        done = subprocess.run(proof, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert all(any("format=raw" in each for each in node.asked) for node in nodes), "tasks spread over the nodes"
        orphans = len(PLACE.listed()) - len({name for entry in read_manifest(PLACE).files for name in entry.names})
    record_property("measured", f"{len(KILLS)} kills, {ended} runs went on through them, {orphans} other objects left")


def test_azures_emulator_takes_exports_and_backups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the commands, twice each, so that the second run replaces the manifest by its ETag. An export is proved, and
    a cluster is restored. A write over another version than was read loses. An object that is not there does not keep
    the others from being deleted."""

    def raftlog(*words: str) -> None:
        command = [sys.executable, "-m", "raftlog.cluster.cli.main", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    with azurite(tmp_path / "objects", monkeypatch), LocalCluster(tmp_path / "nodes", 1) as local:
        place = ObjectPlace("az://bucket/rules")
        first = (place / "a").replace(b"1", None)
        (place / "a").replace(b"2", first)
        for version in (first, None):
            with pytest.raises(ChangedError):
                (place / "a").replace(b"3", version)
        place.delete(["gone", "a"])
        assert place.listed() == {}
        local.restore()
        at = ("-e", local.urls[0])
        with SyncClient(local.urls) as client:
            for number in range(2):
                client.append_many([NewRecord(b"%d-%d" % (number, each)) for each in range(50)])
                raftlog("backup", "az://bucket/backups/nightly", *at)
                raftlog("export", "--to", "az://bucket/all", "--engine", "arrow", "--append", *at)
        raftlog("disk", "check", "az://bucket/backups/nightly")
        raftlog("verify", "az://bucket/all", "--engine", "arrow", *at)
        (tmp_path / "new").mkdir()
        (tmp_path / "new/cluster.toml").write_bytes((tmp_path / "nodes/cluster.toml").read_bytes())
        raftlog("restore", "az://bucket/backups/nightly", "--cluster", "new/cluster.toml", "--new-ids")
        assert (tmp_path / "new/node-1").exists()
