"""A cluster of real processes is upgraded node by node under load, and back before the cluster version rises.

Once from the release before to this tree, each installed from its wheel; once to a made-up next version, which knows a
newer cluster version.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from raftlog import SyncClient
from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.config.joining import TLS_FOLDER
from raftlog.cluster.node.first_admin import as_operator
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.security.authority import make_client
from raftlog.cluster.security.tls import CERTIFICATE_VARIABLE, KEY_VARIABLE
from tests.acceptance.conftest import SETTINGS, Measure
from tests.acceptance.load import Load
from tests.acceptance.logs import check_exactly_once, equal_logs
from tests.compiled import INTERPRETED_ONLY
from tests.house.rules import ROOT
from tests.support import HANG_S, free_ports, wait_until
from tests.wheels import build, committed, install, run

PROGRAM = Path(__file__).with_name("next_version.py")
NEXT = {"NEXT_VERSION": "1"}
STEPS = ((1, True, [2, 1, 1]), (2, True, [2, 2, 1]), (2, False, [2, 1, 1]), (2, True, [2, 2, 1]))
"""The node that is restarted, whether with the next program, and what each node knows then."""


class Upgraded(LocalCluster):
    """Nodes of which each has a program of its own: what its environment says."""

    def restart(self, node: int, program: Mapping[str, str], killed_while: str = "") -> None:
        """Stops the node cleanly, and starts that program on its folder. Kills it while it `stops` or `starts`."""
        if killed_while == "stops":
            self._signal(node, signal.SIGTERM)
            self.kill(node)
        self.stop_node(node)
        self.environments[node] = program
        if killed_while == "starts":
            before = self.log_file(node).stat().st_size
            self.start_node(node)
            wait_until(lambda: self.log_file(node).stat().st_size > before, HANG_S, what="the first line of its log")
            self.kill(node)
        self.start_node(node)
        self.wait_ready(timeout_s=HANG_S)

    def versions(self) -> list[tuple[int, int]]:
        """The cluster version in force and the newest known one, as each node says."""
        found = [self.status(node) for node in self.nodes]
        return [(each.cluster_version, each.known_version) for each in found if each is not None]


@INTERPRETED_ONLY
async def test_pitfall_77_a_cluster_is_upgraded_node_by_node_under_load_and_back_before_the_version_rises(
    tmp_path: Path,
) -> None:
    """While one node lacks the next program, the cluster stays at version 1, applies by its rules, and each node may
    have today's program again. With the last node the version rises by itself, at one index on all nodes: they apply
    by the new rules and agree in every digest point. No acknowledged write is lost on the way, and none is doubled.
    Then today's program does not start on such a folder; the next one does.
    """
    settings = {"limits.digest_point_entries": 10}
    nodes = Upgraded(tmp_path / "nodes", settings=settings, ports=free_ports(6), command=(sys.executable, str(PROGRAM)))
    with nodes, SyncClient(nodes.urls) as client:
        nodes.restore()

        def read() -> bytes:
            item = client.get(b"k")
            return b"" if item is None else item.value

        async with Load(nodes.urls, writers=4, think_s=0.01) as load:
            for node, is_next, known in STEPS:
                nodes.restart(node, NEXT if is_next else {})
                await load.more(20)
                assert nodes.versions() == [(1, each) for each in known]
                client.put(b"k", b"quiet")
                assert read() == b"quiet"
            nodes.restart(3, NEXT)
            wait_until(lambda: nodes.versions() == [(2, 2)] * 3, what="cluster version 2 on each node")
            await load.more(20)
            client.put(b"k", b"loud")
            assert read() == b"LOUD"
        await check_exactly_once(nodes, load)
        assert [found.digests.differ for node in nodes.nodes if (found := nodes.status(node))] == [0, 0, 0]
        nodes.stop_node(1)
        nodes.environments[1] = {}
        nodes.start_node(1)
        wait_until(lambda: nodes.exit_code(1) is not None, what="the end of today's program")
        assert nodes.exit_code(1) == NodeExit.UNKNOWN_VERSION
        assert "is at version 2, this program knows versions up to 1" in nodes.tail(1)
        nodes.restart(1, NEXT)
        assert nodes.versions() == [(2, 2)] * 3


RELEASE = "0.1.0"
BEFORE_ITS_TAG = "d6caa2a0"
"""The release that a cluster is upgraded from, and the commit that stands for it until its tag exists."""
CLIENT = Path(__file__).with_name("upgrade_client.py")
GRANTS = ("append on log", "read on log", "read on keys:*", "write on keys:*")
AS_EACH_NODE = ("/bin/sh", "-c", 'exec "$PROGRAM_OF_NODE" "$@"', "raftlog")
"""Runs the command line that the environment of a node names."""


class Versions(NamedTuple):
    """The folders with the programs of the two versions, and what the older one was built from."""

    old: Path
    new: Path
    commit: str


def is_known(commit: str) -> bool:
    """Whether git has it: a shallow clone or a source archive does not."""
    command = ["git", "cat-file", "-e", f"{commit}^{{commit}}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    """Both versions, each installed from its wheel; the older wheel is built from the tag."""
    folder = tmp_path_factory.mktemp("versions")
    known = [each for each in (RELEASE, BEFORE_ITS_TAG) if is_known(each)]
    if not known:
        pytest.skip(f"this checkout has neither the tag {RELEASE} nor the commit {BEFORE_ITS_TAG}")
    commit = known[0]
    wheels = build(folder / "old-wheel", committed(commit, folder / "tree")), build(folder / "new-wheel")
    return Versions(install(folder / "old", str(wheels[0])), install(folder / "new", str(wheels[1])), commit)


class Writer:
    """A process with the client of one version, which writes for as long as the cluster is upgraded."""

    def __init__(
        self, python: Path, name: str, urls: Sequence[str], environment: Mapping[str, str], said: Path
    ) -> None:
        self.name, self._said = name, said
        command = [str(python), "-I", str(CLIENT), "write", name, *urls]
        with open(said, "wb") as output:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, env=environment)

    def told(self) -> list[dict[str, Any]]:
        """What it has written so far, one row a write."""
        whole = self._said.read_text("utf-8").rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def more(self, count: int) -> None:
        """Waits until it has ended so many more writes."""
        goal = len(self.told()) + count
        wait_until(lambda: len(self.told()) >= goal, HANG_S, what=f"{count} more writes of {self.name}", every_s=0.1)

    def end(self) -> None:
        """Ends it after the write under way."""
        self._process.communicate(timeout=HANG_S)
        assert self._process.returncode == 0


@pytest.mark.timeout(1800)  # ends what hangs: 12 to 18 restarts under load
@pytest.mark.long  # installs packages from the registry
@pytest.mark.parametrize("count", [3, 5])
def test_a_release_is_upgraded_to_this_one_under_load_and_back(
    count: int, versions: Versions, tmp_path: Path, record_property: Measure
) -> None:
    """With TLS and a user of few rights. All but the last node get the new program, then the old one again, then all
    get the new one. Each node is killed once in its change: while its old program stops (nodes 2 and 4), or while its
    new one starts.

    A client of each version writes all the while. None meets an error, before the upgrade (when the nodes restart with
    the same program, and the same kills) or in it. Each reads back what it wrote, and in the end both read each
    acknowledged write once, in order. All nodes hold the same. The longest write of each part is shown.
    """
    nodes = Upgraded(
        tmp_path / "nodes", count, settings=SETTINGS, ports=free_ports(2 * count), secure=True, command=AS_EACH_NODE
    )
    old, new = ({"PROGRAM_OF_NODE": str(programs / "raftlog")} for programs in versions[:2])
    make_client(nodes.folder / TLS_FOLDER, "app", nodes.cluster.cluster.log)
    own = nodes.tls_files("client-app")
    nodes.environments = dict.fromkeys(nodes.nodes, old)
    parts = (
        ("restarted", old, nodes.nodes),
        ("upgraded but for one", new, nodes.nodes[:-1]),
        ("taken back", old, nodes.nodes[:-1]),
        ("upgraded", new, nodes.nodes),
    )
    longest: list[str] = []
    with nodes, ExitStack() as ends:
        nodes.restore(HANG_S)
        ends.enter_context(as_operator(nodes))
        environment = {**os.environ, CERTIFICATE_VARIABLE: own.certificate, KEY_VARIABLE: own.key}

        def command(*words: str) -> None:
            """The same command line of both versions, as the operator."""
            for programs in versions[:2]:
                run(str(programs / "raftlog"), *words, RAFTLOG_ENDPOINTS=",".join(nodes.urls))

        command("role", "set", "app", *GRANTS)
        command("user", "set", "app", "--role", "app")
        writers = [
            Writer(programs / "python", name, nodes.urls, environment, tmp_path / f"{name}.jsonl")
            for name, programs in (("old", versions.old), ("new", versions.new))
        ]
        for writer in writers:
            ends.callback(writer.end)
        for name, program, changed in parts:
            began = time.monotonic()
            for node in changed:
                for writer in writers:
                    writer.more(5)
                nodes.restart(node, program, "starts" if node % 2 else "stops")
                assert program["PROGRAM_OF_NODE"] in Path(f"/proc/{nodes.pid(node)}/cmdline").read_text()
            command("status")
            command("put", "by", "a command")
            for writer in writers:
                took = [each["took"] for each in writer.told() if each.get("began", 0) >= began]
                longest.append(f"{name}, {writer.name} client: {len(took)} writes, longest {max(took):.2f} s")
        for writer in writers:
            writer.end()
        for writer in writers:
            assert [each for each in writer.told() if "error" in each] == []
            indexes = [each["index"] for each in writer.told()]
            assert indexes == sorted(set(indexes))
        for programs in versions[:2]:
            read = json.loads(run(str(programs / "python"), "-I", str(CLIENT), "read", *nodes.urls))
            for writer in writers:
                mine = [value for value in read if value.startswith(f"{writer.name} ")]
                assert mine == [each["value"] for each in writer.told()], f"{writer.name}, read by {programs}"
        asyncio.run(equal_logs(nodes))
        record_property("measured", f"from {versions.commit}, {count} nodes\n    " + "\n    ".join(longest))
