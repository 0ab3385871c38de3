"""`raftlog sink` as processes: docs/sinks.md as it is written, kills, Ctrl-C, and what exit codes say."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import urllib.request
from pathlib import Path

import pytest

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.demo.story import COMMAND
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.support import HANG_S, free_port, wait_until

pytestmark = pytest.mark.serial

PAGE = Path(__file__).parents[3] / "docs" / "sinks.md"


def blocks(kind: str) -> list[str]:
    """The blocks of that kind on the page."""
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def sink(local: LocalCluster, folder: Path, *words: str) -> subprocess.Popen[str]:
    """`raftlog sink` in a folder."""
    command = [*COMMAND, "sink", *words, "-e", local.url(1)]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def done(local: LocalCluster, folder: Path, *words: str, code: int = 0) -> tuple[str, str]:
    """What the command printed, once it has ended with that code."""
    process = sink(local, folder, *words)
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == code, err
    return out, err


def rows(folder: Path) -> list[tuple[object, ...]]:
    """The rows of the page's sink."""
    with sqlite3.connect(folder / "shop.sqlite") as database:
        found = database.execute("SELECT * FROM customers ORDER BY id").fetchall()
    database.close()
    return found


def test_the_page_is_as_it_says(local: LocalCluster, tmp_path: Path) -> None:
    """Its file, its commands and its Python."""
    (tmp_path / "sinks.toml").write_text(blocks("toml")[0])
    (commands,) = blocks("console")
    written, checked, run, queried, verified = re.findall(r"^\$ (.*)$", commands, re.MULTILINE)
    value = written.split("'")[1]
    with SyncClient(local.url(1)) as client:
        client.put(b"customer/1", value.encode())
    out, err = done(local, tmp_path, *checked.split()[2:])
    assert "Ada" in out
    assert "shop.sqlite is not there, and will be made" in err
    assert "id = suffix:bigint, name = value.name, born = value.born:date" in err
    assert not (tmp_path / "shop.sqlite").exists()
    (tmp_path / "none.toml").write_text(blocks("toml")[0].replace("customer/", "nobody/"))
    assert "none of the first 100,000 records of the log makes a row" in done(local, tmp_path, "check", "none.toml")[1]
    done(local, tmp_path, *run.split()[2:])
    assert "has every change below index" in done(local, tmp_path, *checked.split()[2:])[1]
    assert queried == "sqlite3 shop.sqlite 'SELECT * FROM customers'"
    assert "|".join(map(str, rows(tmp_path)[0])) in commands
    done(local, tmp_path, *verified.split()[2:])
    python = blocks("python")[0]
    script = python.replace("http://127.0.0.1:7001", local.url(1))
    subprocess.run([COMMAND[0], "-c", script], cwd=tmp_path, check=True, timeout=HANG_S)
    assert [row[1] for row in rows(tmp_path)] == ["Ada", "Grace"]


def test_ctrl_c_ends_a_runner_after_its_batch(local: LocalCluster, tmp_path: Path) -> None:
    """With exit code 0, as it is its normal end; until then it follows, and serves metrics."""
    (tmp_path / "sinks.toml").write_text(blocks("toml")[0])
    port = free_port()
    process = sink(local, tmp_path, "run", "sinks.toml", "--metrics-port", str(port), "-o", "json")
    with SyncClient(local.url(1)) as client:
        client.put(b"customer/5", b'{"name": "x", "born": "1900-01-01"}')

    def has_row() -> bool:
        try:
            return bool(rows(tmp_path))
        except sqlite3.Error:
            return False

    wait_until(has_row, what="the row in the store")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=HANG_S) as answer:
        text = answer.read().decode()
    assert 'raftlog_sink_rows_total{sink="customers"} 1.0' in text
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HANG_S)
    assert (process.returncode, err) == (0, "")
    (found,) = json.loads(out)
    assert (found["name"], found["rows"]) == ("customers", 1)


def test_exit_codes_say_what_happened(local: LocalCluster, tmp_path: Path) -> None:
    """Wrong settings 2, a sink that never ran 3, a stopped sink 1, a store that differs 7."""
    path = tmp_path / "sinks.toml"
    path.write_text("[sink.a]\n")
    assert "[sink.a]: to = None is no store" in done(local, tmp_path, "run", "sinks.toml", code=2)[1]
    path.write_text(blocks("toml")[0])
    assert "never ran" in done(local, tmp_path, "status", "sinks.toml", code=3)[1]
    with SyncClient(local.url(1)) as client:
        client.put(b"customer/1", b'{"name": "x", "born": "1900-01-01"}')
        done(local, tmp_path, "run", "sinks.toml", "--once")
        bad = client.put(b"customer/2", b'{"name": "x", "born": "yesterday"}').index
    err = done(local, tmp_path, "run", "sinks.toml", "--once", code=1)[1]
    assert f"index {bad}, with the key customer/2: born is yesterday" in err
    (status,) = json.loads(done(local, tmp_path, "status", "sinks.toml", "-o", "json")[0])
    assert (status["state"], status["rejected"]) == ("stopped", 0)
    assert f"index {bad}, with the key customer/2: born is yesterday" in status["error"]
    done(local, tmp_path, "skip", "sinks.toml", "customers", str(bad))
    done(local, tmp_path, "run", "sinks.toml", "--once")
    (status,) = json.loads(done(local, tmp_path, "status", "sinks.toml", "-o", "json")[0])
    assert (status["lag"], status["rejected"], status["state"], status["error"]) == (0, 1, "ended", "")
    (retried,) = json.loads(f"[{done(local, tmp_path, 'retry', 'sinks.toml', 'customers', '-o', 'json')[0]}]")
    assert (retried["retried"], retried["left"]) == (0, 1)
    with sqlite3.connect(tmp_path / "shop.sqlite") as database:
        database.execute("UPDATE customers SET name = 'y'")
    database.close()
    assert "1: another row" in done(local, tmp_path, "verify", "sinks.toml", code=7)[1]
    assert "born is yesterday" in done(local, tmp_path, "rebuild", "sinks.toml", "customers", code=1)[1]
    with SyncClient(local.url(1)) as client:
        client.put(b"customer/2", b'{"name": "z", "born": "1900-01-01"}')
        last = client.put(b"customer/3", b'{"name": "z", "born": "1900-01-01"}').index
    done(local, tmp_path, "rebuild", "sinks.toml", "customers")
    out, _ = done(local, tmp_path, "wait", "sinks.toml", "customers", "--index", str(last), "-o", "json")
    assert json.loads(out)["next"] > last
    (found,) = json.loads(done(local, tmp_path, "verify", "sinks.toml", "-o", "json")[0])
    assert (found["same"], found["rows"]) == (True, 3)
    assert "give --yes" in done(local, tmp_path, "drop", "sinks.toml", "customers", code=2)[1]
    done(local, tmp_path, "drop", "sinks.toml", "customers", "--yes")
    assert "never ran" in done(local, tmp_path, "status", "sinks.toml", code=3)[1]
