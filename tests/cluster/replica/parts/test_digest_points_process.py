"""A real node that applies one value wrongly: it ends with its exit code, the others go on, and it comes back sound."""

import json
import sys
from pathlib import Path

import pytest

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.support import wait_until

pytestmark = [pytest.mark.timeout(180)]

COMMAND = (sys.executable, "-m", "tests.cluster.replica.parts.flipping_node")


@pytest.mark.parametrize("who", ["follower", "leader"])
def test_a_node_that_applies_a_value_wrongly_is_fenced(tmp_path: Path, who: str) -> None:
    """Every acknowledged write is there in the end, on all nodes alike; the node says which point, and what to do."""
    with LocalCluster(
        tmp_path / "cluster", 3, settings={"limits.digest_point_entries": 20}, command=COMMAND
    ) as cluster:
        cluster.environments[1] = {"FLIP": "yes", "RAFTLOG_PURE": "1"}  # a compiled module takes no fault
        cluster.restore()
        with SyncClient(cluster.urls, deadline_s=30) as client:
            wanted = 1 if who == "leader" else 2
            if cluster.leader() != wanted:
                client.transfer_leadership(wanted)
            client.put(b"flip", b"value")
            written: list[bytes] = []
            while cluster.exit_code(1) is None:
                written.append(b"key-%d" % len(written))
                client.put(written[-1], b"v")
                assert len(written) < 2_000
            assert cluster.exit_code(1) == NodeExit.DIVERGED
            lines = [json.loads(line) for line in cluster.log_file(1).read_text().splitlines() if line.startswith("{")]
            (told,) = [line for line in lines if line["event"] == "state_diverged"]
            assert told["point"] > told["agreed"]
            assert "start the node again" in told["mend"]
            written += [b"after-%d" % number for number in range(30)]
            for key in written[-30:]:
                client.put(key, b"v")
            del cluster.environments[1]
            cluster.start_node(1)
            cluster.wait_ready()
            last = client.put(b"last", b"v").index

            def are_equal() -> bool:
                states = [status for node in (1, 2, 3) if (status := cluster.status(node)) is not None]
                return len({status.state for status in states if status.applied >= last}) == 1 and len(states) == 3

            wait_until(are_equal, 30)
        with SyncClient([cluster.url(1)], bound=True, deadline_s=10) as client:
            got = client.get(b"flip")
            assert got is not None
            assert got.value == b"value"
            missing = [key for key in written if client.get(key) is None]
            assert not missing
