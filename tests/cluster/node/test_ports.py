"""The free ports of local clusters, chaos runs and tests: no port is given twice."""

from __future__ import annotations

import json
import subprocess
import sys

from raftlog.cluster.node.ports import free_ports

DRAWING = """
import itertools, json, sys
from unittest.mock import patch
with patch("os.getpid", return_value=7):  # both begin at the same port
    from raftlog.cluster.node.ports import free_ports
sys.stdin.readline()
print(json.dumps(free_ports(150)), flush=True)
sys.stdin.readline()
"""


def test_two_processes_that_draw_at_once_never_get_the_same_port() -> None:
    """Both begin to look at the same number at the same moment, and nothing listens on any of the ports yet."""
    drawing = [
        subprocess.Popen([sys.executable, "-c", DRAWING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in drawing:
        assert process.stdin is not None
        process.stdin.write("draw\n")
        process.stdin.flush()
    drawn: list[int] = []
    for process in drawing:
        assert process.stdout is not None
        drawn += json.loads(process.stdout.readline())
    mine = free_ports(150)  # while both hold theirs: a port is free again once its process has ended
    for process in drawing:
        process.communicate("end\n")
    assert len({*drawn, *mine}) == 450


def test_no_port_is_given_twice_by_one_process() -> None:
    """A second cluster of the same process gets other ports, although none of the first listens yet."""
    assert not set(free_ports(5)) & set(free_ports(5))
