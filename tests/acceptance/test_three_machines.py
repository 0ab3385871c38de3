"""Rehearses docs/three_machines.md: every command of the page, as it stands, on machines of their own.

Once with the program of this checkout. Once from wheels, on machines with only Python, with the steps that other pages
add: alerts, the dashboard, an export by a Spark cluster into an object store, and another version of the program.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.acceptance import rehearsal
from tests.acceptance.conftest import Measure
from tests.acceptance.rehearsal import Machine, Step
from tests.acceptance.test_upgrade import BEFORE_ITS_TAG, RELEASE, is_known
from tests.cluster.cli.test_docs_blocks import blocks
from tests.house import dashboard
from tests.house.rules import ROOT
from tests.store_gateway import SERVER
from tests.wheels import build, committed, install, run

PAGE = "docs/three_machines.md"
COMMANDS = dict(
    re.findall(r"^## (\w+)\n((?:.+\n)+)", Path(__file__).with_name("clean_machines.txt").read_text(), re.MULTILINE)
)
"""What machines with only Python do before the page and after it; `change` is of one node, a version and a host."""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_page_of_three_machines_is_rehearsed(tmp_path: Path, record_property: Measure) -> None:
    """Three machines become five, with TLS, users, units and Prometheus; a lost volume is refused and replaced; a node
    moves. Between all steps a record is appended: each that was acknowledged is in the log at the end, once."""
    if why := rehearsal.missing():
        pytest.skip(f"the three machines cannot be rehearsed: {why}")
    found = blocks(PAGE)
    (zone,) = (block.text for block in found if " SRV " in block.text)
    addresses = dict(re.findall(r"^(\w+)\.example\.com\. +A +(\S+)$", zone, re.MULTILINE))
    appended = 0
    with rehearsal.rehearsed(tmp_path, addresses, zone) as machines:
        for block in found:
            if name := re.match(r"# (\S+\.yml)\n", block.text):
                (tmp_path / "operator" / name[1]).write_text(block.text)
            if block.language != "console":
                continue
            for step in rehearsal.steps_of(block.text, block.line):
                machines[step.machine].take(step)
                if appended or step.command.startswith("raftlog put "):
                    appended += 1
                    machines["operator"].run(f"raftlog append --deadline 60 'record {appended}'")
        log = machines["operator"].run("raftlog log -o raw").splitlines()
    assert [line for line in log if line.startswith("record ")] == [f"record {n}" for n in range(1, appended + 1)]
    record_property("measured", f"{appended} records were appended while three machines became five")


@pytest.mark.long
@pytest.mark.timeout(3_000)
def test_machines_with_only_python_do_all_of_it_once(tmp_path: Path, record_property: Measure) -> None:
    """Five machines get the wheel and its packages from a folder, and do what the page says. Then one alert fires and
    clears, the dashboard's queries are asked, a Spark cluster exports into an object store, and under load each node
    gets the program of the release before and this one again. No acknowledged record is lost or doubled.

    `TRANSCRIPT=FILE` keeps the commands and what they printed, as docs/three_machines.txt has them.
    """
    if why := rehearsal.missing():
        pytest.skip(f"the machines cannot be rehearsed: {why}")
    if not SERVER.exists():
        pytest.skip("no S3 server: .ci/store builds versitygw")
    before = next((each for each in (RELEASE, BEFORE_ITS_TAG) if is_known(each)), None)
    if before is None:
        pytest.skip(f"this checkout has neither the tag {RELEASE} nor the commit {BEFORE_ITS_TAG}")
    srv = tmp_path / "srv"
    wheel = build(srv / "wheels")
    build(srv / "before", committed(before, tmp_path / "tree"))
    run(sys.executable, "-m", "venv", str(tmp_path / "pip"))
    run(str(tmp_path / "pip/bin/pip"), "download", "-q", "-d", str(srv / "wheels"), f"{wheel}[dns,fast]")
    install(srv / "spark", f"{wheel}[dns,spark,store]")
    shutil.copy(SERVER, srv / "versitygw")
    shutil.copy(ROOT / "docs/monitoring/alerts.yml", srv)
    queries = [query.replace("$job", "raftlog").replace("$__rate_interval", "1m") for _, query in dashboard.queries()]
    (srv / "queries").write_text("".join(f"{' '.join(query.split())}\n" for query in queries))

    found = blocks(PAGE)
    (zone,) = (block.text for block in found if " SRV " in block.text)
    addresses = dict(re.findall(r"^(\w+)\.example\.com\. +A +(\S+)$", zone, re.MULTILINE))
    transcript: list[str] = []

    def take(machines: dict[str, Machine], text: str) -> None:
        for step in rehearsal.steps_of(text, 0):
            machine = machines[step.machine]
            try:
                machine.take(step)
            finally:
                transcript.extend(machine.transcript)
                machine.transcript.clear()

    try:
        with rehearsal.rehearsed(tmp_path, addresses, zone, srv) as machines:
            began = time.monotonic()
            with ThreadPoolExecutor() as pool:
                [
                    *pool.map(
                        lambda machine: machine.take(Step(0, machine.name, COMMANDS["install"].strip(), [])),
                        machines.values(),
                    )
                ]
            for machine in machines.values():
                transcript += machine.transcript
                machine.transcript.clear()
            take(machines, "operator$ PATH=/opt/raftlog/bin:$PATH")
            for block in found:
                if name := re.match(r"# (\S+\.yml)\n", block.text):
                    (tmp_path / "operator" / name[1]).write_text(f"{block.text}\n")
                if block.language != "console":
                    continue
                take(machines, block.text)
                if "raftlog put greeting" in block.text:
                    first_write_s = time.monotonic() - began
                    transcript.append(f"({first_write_s:.0f} s after pip install began on all machines at once)")
            take(machines, COMMANDS["more"])
            hosts = {**{node: f"n{node}.example.com" for node in (1, 2, 3, 4)}, 5: "10.0.0.15"}
            for version in ("before", "wheels"):
                for node, host in hosts.items():
                    take(machines, COMMANDS["change"].format(node, version, host))
            take(machines, "operator$ touch enough; until ! pgrep -f 'append --deadline' > /dev/null; do sleep 1; done")
            log = machines["operator"].run("raftlog log -o raw").splitlines()
            take(machines, "operator$ raftlog members list")
            acknowledged = (tmp_path / "operator" / "acknowledged").read_text().splitlines()
    finally:
        if file := os.environ.get("TRANSCRIPT"):
            Path(file).write_text("\n".join(transcript) + "\n")
    assert acknowledged
    assert [line for line in log if line.startswith("load ")] == acknowledged
    measured = f"{len(acknowledged)} records under load; from pip install to the first write {first_write_s:.0f} s"
    record_property("measured", measured)
