"""`raftlog doctor` finds what slows a node or keeps it from starting, and names what to do."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from raftlog.cluster.cli import doctor
from raftlog.cluster.cli.commands import build
from raftlog.cluster.config.settings import load_settings
from raftlog.cluster.node.formatting import create_cluster
from tests.support import free_ports

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/export /srv/log nfs4 rw 0 0
tmpfs /srv/log\\040files tmpfs rw 0 0
"""
SLOW_S = 10.0
Usage = namedtuple("Usage", "total used free")


def found(rows: Any) -> dict[str, doctor.CheckFound]:
    """By check."""
    return {each.check: each for each in rows}


@pytest.mark.parametrize(
    ("folder", "kind"),
    [("/var/lib/x", "ext4"), ("/srv/log/node-1", "nfs4"), ("/srv/log files/n", "tmpfs"), ("/srv/logs", "ext4")],
)
def test_the_file_system_of_a_folder_is_that_of_the_nearest_mount(folder: str, kind: str) -> None:
    """A name that merely begins in the same way is another folder; a blank is written as in /proc/mounts."""
    assert doctor.file_system(Path(folder), MOUNTS) == kind


def test_a_disk_that_serves_no_log_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Little space, memory or the network in place of a disk, slow syncs, a folder without a right to write: each has
    what to do. A folder that does not exist yet is the nearest one above it."""
    fine = found(doctor.look_at_disk(tmp_path / "not" / "yet", SLOW_S))
    assert fine["disk syncs"].state == "ok"
    assert not (tmp_path / "not").exists()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("shutil.disk_usage", lambda folder: Usage(1, 1, 1 << 20))
    for kind, why in (("tmpfs", "is lost with the machine"), ("nfs4", "by the network")):
        monkeypatch.setattr(doctor, "file_system", lambda folder, mounts, kind=kind: kind)
        rows = found(doctor.look_at_disk(tmp_path, 0.0))
        assert [each.state for each in rows.values()] == ["problem"] * 3
        assert why in rows["file system"].do
        assert "1 MiB free" in rows["disk space"].found
        assert "SSD" in rows["disk syncs"].do

    def refused(folder: Path) -> list[float]:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(doctor, "sync_times", refused)
    assert "name another --data" in found(doctor.look_at_disk(tmp_path, SLOW_S))["disk syncs"].do


def test_a_machine_with_little_gets_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """One processor, few open files, a clock without a time server: a node runs, so none is a problem."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    monkeypatch.setattr("resource.getrlimit", lambda which: (256, 1_024))
    monkeypatch.setattr(doctor, "clock_state", lambda: 5)
    rows = found(doctor.look_at_machine())
    assert {each.state for each in rows.values()} == {"hint"}
    assert all(each.do for each in rows.values())
    monkeypatch.setattr("resource.getrlimit", lambda which: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(doctor, "clock_state", lambda: 0)
    rows = found(doctor.look_at_machine())
    assert (rows["open files"].state, rows["clock"].state) == ("ok", "ok")
    monkeypatch.setattr(doctor, "clock_state", lambda: None)
    assert "clock" not in found(doctor.look_at_machine())


def test_the_kernel_says_whether_the_clock_is_set() -> None:
    """A state of adjtimex(2), 0 to 5, or none where the call is missing."""
    assert doctor.clock_state() in {None, *range(6)}


def test_an_address_in_use_or_of_another_machine_is_a_problem(tmp_path: Path) -> None:
    """Each address of the settings is tried, and given back."""
    ports = free_ports(2)
    made = create_cluster(tmp_path / "made", ["127.0.0.1"], port=ports[0], peer_port=ports[1])
    loaded = load_settings(made.machines[1] / "node.toml", {"RAFTLOG_HTTP_PROBE_LISTEN": "192.0.2.1:80"})
    with socket.create_server(("127.0.0.1", ports[1])):
        rows = found(doctor.look_at_addresses(loaded))
    assert rows["peer.listen"].state == "problem"
    assert "in use" in rows["peer.listen"].found
    assert rows["http.probe_listen"].state == "problem"
    assert found(doctor.look_at_addresses(loaded))["peer.listen"].state == "ok"


@pytest.mark.parametrize(
    ("said", "state"), [('openjdk version "17.0.15" 2025', "ok"), ('java version "1.8.0_402"', "hint"), ("odd", "hint")]
)
def test_java_is_needed_by_spark_alone(said: str, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old one, or none, is a hint."""
    answer: Any = subprocess.CompletedProcess([], 0, "", said)
    monkeypatch.setattr("subprocess.run", lambda *_, **__: answer)
    assert found(doctor.look_at_java())["java"].state == state

    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr("subprocess.run", missing)
    assert "raftlog query" in found(doctor.look_at_java())["java"].do


def test_a_problem_ends_with_1_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After all rows; without one the command ends with 0."""
    monkeypatch.setattr(doctor, "look_at_machine", lambda: iter(()))
    for free, code in ((1 << 20, 1), (1 << 40, 0)):
        monkeypatch.setattr("shutil.disk_usage", lambda folder, free=free: Usage(1, 1, free))
        monkeypatch.setattr(doctor, "file_system", lambda folder, mounts: "ext4")
        monkeypatch.setattr(doctor, "sync_times", lambda folder: [0.001] * doctor.SYNCS)
        done = CliRunner().invoke(build("doctor"), ["doctor", "--data", str(tmp_path), "-o", "tsv"])
        assert done.exit_code == code, done.output
        assert ("need you: disk space" in done.stderr) is (code == 1)
        assert "disk syncs\tok\t" in done.stdout
    assert os.listdir(tmp_path) == []
