"""Rehearses docs/three_machines.md: every command of the page, as it stands, on machines of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.acceptance import rehearsal
from tests.acceptance.conftest import Measure
from tests.cluster.cli.test_docs_blocks import blocks

PAGE = "docs/three_machines.md"


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
