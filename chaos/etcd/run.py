"""Runs the same harness against a real etcd: register workload, the same nemeses, the same checker.

It calibrates the harness in both directions. An etcd that is used correctly must come out valid. An etcd whose clients
read from any member without asking the leader (`etcd-stale`) must come out invalid.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import aiohttp

from raftlog.chaos.deploy.deployment import Deployment
from raftlog.chaos.deploy.ports import Ports
from raftlog.chaos.etcd.cluster import EtcdCluster, EtcdDeployment, etcd_path, status_of
from raftlog.chaos.etcd.store import EtcdStore, in_turns
from raftlog.chaos.runs.runner import FINAL_S, RESTORE_S, FaultRun, Run, Teller, Told, load, told_of
from raftlog.chaos.runs.scenarios import Scenario
from raftlog.chaos.runs.schedule import Planned
from raftlog.chaos.workloads.observer import ASK_S, EVERY_S, SILENT, Observer
from raftlog.chaos.workloads.register import Registers
from raftlog.chaos.workloads.workload import BOUND_DEADLINE_S, Arena, Recorder, Refused
from raftlog.cluster.client.aio.client import OutcomeUnknown
from raftlog.cluster.node.local_cluster import LocalClusterError

SETTLE_S: Final = 60.0


@dataclass(slots=True)
class EtcdObserver(Observer):
    """Asks each member for the leader, past the proxies."""

    async def _watch(self, node: int, url: str) -> None:
        timeout = aiohttp.ClientTimeout(total=ASK_S)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as http:
            while True:
                try:
                    async with http.post(f"{url}/v3/maintenance/status", data="{}") as answer:
                        told = status_of(node, await answer.json(content_type=None))
                except (aiohttp.ClientError, TimeoutError, ValueError, KeyError):
                    last = self._last.get(node)
                    self._saw(node, SILENT, last.term if last else 0)
                else:
                    self._saw(node, told.role, told.term)
                await asyncio.sleep(EVERY_S)


async def execute(
    scenario: Scenario,
    planned: Sequence[Planned],
    *,
    nodes: int,
    seconds: float,
    seed: int,
    folder: Path,
    ports: Ports,
    tell: Teller,
    serializable: bool = False,
) -> Run:
    """Carries a run out. Raises what keeps it from being made; leaves no process behind."""
    with EtcdDeployment(etcd_path(), folder / "nodes", ports, nodes=nodes) as deployment:
        tell(Told("starting", 0.0, 0))
        await asyncio.to_thread(deployment.start)
        arena = Arena(seed=seed, pace=scenario.pace, urls=deployment.dial)
        async with aiohttp.ClientSession(trust_env=False, connector=aiohttp.TCPConnector(limit=0)) as http:

            def open_store(number: int) -> tuple[EtcdStore, int | None]:
                node = arena.node_of(number)
                urls = [arena.urls[node]] if node else in_turns(list(arena.urls.values()), arena.chance(f"{number}"))
                return EtcdStore(http, urls, BOUND_DEADLINE_S, serializable), node

            registers = Registers(arena, Recorder(arena), open=open_store)
            run = Run(scenario, seed, nodes, seconds, folder, [FaultRun(each) for each in planned], [registers], arena)
            observer = EtcdObserver(arena, {node: deployment.cluster.url(node) for node in deployment.cluster.nodes})
            arena.began_ns = time.monotonic_ns()
            watching = asyncio.create_task(observer.run())
            try:
                await load(run, cast(Deployment, deployment), observer, tell)  # all that nemeses know of one
                tell(told_of(run, "healing", observer))
                await asyncio.to_thread(_restore, deployment, run)
                await _final(run, http, deployment)
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            run.stretches = observer.stretches
        tell(told_of(run, "comparing all members", observer))
        await asyncio.to_thread(_compare, deployment.cluster, run)
        return run


def _restore(deployment: EtcdDeployment, run: Run) -> None:
    try:
        deployment.heal()
        deployment.cluster.restore(RESTORE_S)
    except (RuntimeError, OSError) as error:
        run.aftermath.problems.append(f"after the last fault the cluster did not come back: {error}")


async def _final(run: Run, http: aiohttp.ClientSession, deployment: EtcdDeployment) -> None:
    """Each member accepts a write and returns it on a read."""
    for node in deployment.cluster.nodes:
        store = EtcdStore(http, [deployment.url(node)], FINAL_S)
        try:
            await store.write(f"final/{node}", node)
            told = await store.read(f"final/{node}")
            if told.value != node:
                raise Refused(f"it read {told.value} after it had written {node}")
        except (OutcomeUnknown, Refused) as error:
            run.aftermath.problems.append(f"the final write and read at node {node} failed: {error}")


def _compare(cluster: EtcdCluster, run: Run) -> None:
    """All members come to the same revision, and hash their keys up to it to the same."""
    try:
        revision = _settled(cluster)
        for node in cluster.nodes:
            told = cluster.hash(node, revision)
            run.aftermath.digests[node] = {
                "index": revision,
                "revision": revision,
                "state": {"count": 0, "xor": f"{int(told.get('hash', 0)):08x}"},
                "log": None,
            }
    except (LocalClusterError, OSError, ValueError, KeyError) as error:
        run.aftermath.problems.append(f"the members could not be compared: {error}")
        return
    run.aftermath.last_index = revision
    if len({each["state"]["xor"] for each in run.aftermath.digests.values()}) != 1:
        run.aftermath.problems.append(f"the hashes of the members differ: {run.aftermath.digests}")


def _settled(cluster: EtcdCluster) -> int:
    end = time.monotonic() + SETTLE_S
    while True:
        told = [cluster.status(node) for node in cluster.nodes]
        revisions = {None if each is None else each.revision for each in told}
        if len(revisions) == 1 and (revision := revisions.pop()) is not None:
            return revision
        if time.monotonic() > end:
            raise LocalClusterError(f"{SETTLE_S:g} s after the last fault they stand at revisions {revisions}")
        time.sleep(0.05)
