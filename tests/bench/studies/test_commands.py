"""The cost of a command's start is measured on the commands themselves, and stays within a few times that of Python."""

from pathlib import Path

import pytest

from bench.studies import commands
from raftlog.cluster.node.local_cluster import LocalCluster


@pytest.mark.serial
def test_commands_start_within_a_few_times_pythons_own_time(tmp_path: Path) -> None:
    """`raftlog get` costs less than 30 times `python -c pass` (measured: 11, before 45). The completion of a name costs
    less than 18 times (measured: 6, before 71). A module that every command imports again would show.
    """
    with LocalCluster(tmp_path / "data", 1) as cluster:
        cluster.start()
        cluster.wait_ready()
        url = cluster.urls[0]
        commands.cpu_s((*commands.RAFTLOG, "put", "hello", "world", "-e", url), {})
        costs = {cost.name: cost for cost in commands.measure(url, turns=5)}
    assert costs["python -c pass"].times_pass == 1.0
    assert costs["raftlog get hello"].times_pass < 30
    assert costs["completion of `raftlog g`"].times_pass < 18


def test_a_command_that_fails_is_no_measurement() -> None:
    """An exit code that was not expected ends the measurement with the command's own words."""
    with pytest.raises(RuntimeError, match="ended with 2"):
        commands.cpu_s((*commands.RAFTLOG, "gte"), {})
