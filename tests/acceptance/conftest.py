"""Clusters of real processes for the acceptance tests; every one of them runs alone on the machine."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from raftlog.chaos.deploy.deployment import Deployment
from raftlog.cluster.node.first_admin import as_operator
from raftlog.cluster.node.local_cluster import READY_S, LocalCluster
from tests.support import free_ports

Measure = Callable[[str, object], None]
"""The type of pytest's `record_property`; values recorded as `measured` are shown at the end of the run."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker("serial")


SETTINGS = {"disk.segment_bytes": 16 << 20, "log.format": "json"}
"""Of clusters that live for minutes, on a disk that others use too."""


@pytest.fixture(scope="session", params=[False, pytest.param(True, marks=pytest.mark.long)], ids=["plain", "secure"])
def secure(request: pytest.FixtureRequest) -> bool:
    """Whether the nodes have TLS and access control: every test of a cluster runs in both forms."""
    return bool(request.param)


# Starting a cluster costs seconds on two cores, so the tests of one file share one, restored before each.


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory, secure: bool) -> Iterator[LocalCluster]:
    """Three nodes that meet directly."""
    with own_cluster(tmp_path_factory.mktemp("cluster"), SETTINGS, secure=secure) as nodes:
        yield nodes


@pytest.fixture
def cluster(shared_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Three nodes, up and ready, without proxies."""
    shared_cluster.restore()
    yield shared_cluster
    _tell_state(shared_cluster)


@pytest.fixture(scope="module")
def proxied_cluster(
    tmp_path_factory: pytest.TempPathFactory, toxiproxy_path: Path, secure: bool
) -> Iterator[Deployment]:
    """Three nodes with the real Toxiproxy on every link."""
    folder = tmp_path_factory.mktemp("proxied") / "nodes"
    with Deployment(folder, free_ports, settings=SETTINGS, secure=secure) as deployment:
        deployment.start()
        yield deployment


@pytest.fixture
def proxied(proxied_cluster: Deployment) -> Iterator[Deployment]:
    """Three nodes, up and ready, every link healed."""
    proxied_cluster.restore()
    yield proxied_cluster
    _tell_state(proxied_cluster.cluster)


@contextmanager
def own_cluster(
    folder: Path, settings: Mapping[str, object], ready_s: float = READY_S, *, secure: bool
) -> Iterator[LocalCluster]:
    """Three nodes, up and ready; the ends of their logs are shown at the end."""
    with LocalCluster(folder / "nodes", settings=settings, secure=secure) as cluster:
        cluster.restore(ready_s)
        with as_operator(cluster) if secure else nullcontext():
            yield cluster
        _tell_state(cluster)
        cluster.kill(*cluster.running)  # quicker than to stop them one by one


def _tell_state(cluster: LocalCluster) -> None:
    """Pytest shows it beside a failed test: the running nodes, their statuses, and the ends of the logs."""
    for node in cluster.nodes:
        print(f"node {node}: pid {cluster.pid(node)}, {cluster.status(node)}")
    print(cluster.tails())
