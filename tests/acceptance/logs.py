"""Reads the logs of a cluster after a run from every node: equal on all, each acknowledged write once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

import msgspec

from raftlog.cluster.api.records import LogPageJson, LogRecord
from raftlog.cluster.client.flow import LostAnswer
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.acceptance.load import Door, Load
from tests.support import wait_until


def settle(cluster: LocalCluster, deadline_s: float = 30.0) -> int:
    """Waits until all nodes have applied all that any of them committed, and returns that index."""

    def applied() -> int:
        told = [cluster.status(node) for node in cluster.nodes]
        if any(each is None for each in told):
            return 0
        there = {each.applied for each in told if each is not None}
        committed = {each.committed for each in told if each is not None}
        return there.pop() if len(there) == 1 and there == committed else 0

    return wait_until(applied, deadline_s, what="all nodes to have applied the same")


async def records_of(url: str, first: int, last: int) -> list[LogRecord]:
    """The records `first` to `last` as this node returns them, internal ones included."""
    door = Door(url)
    records: list[LogRecord] = []
    position = first
    while position <= last:
        target = f"/v1/log?from={position}&to={last + 1}&limit=5000&internal=true&consistency=stale&min_index={last}"
        answer = await door.ask("GET", target, timeout_s=20)
        assert not isinstance(answer, LostAnswer), answer
        assert answer.head.status == 200, answer.body
        page = msgspec.json.decode(answer.body, type=LogPageJson)
        assert page.next > position, f"no progress at {position}: {page}"
        records += page.records
        position = page.next
    door.close()
    assert [record.index for record in records] == list(range(first, last + 1)), "an index is missing or doubled"
    return records


async def equal_logs(cluster: LocalCluster, first: int = 1) -> list[LogRecord]:
    """The log of the cluster from `first` on, after all nodes were found to hold the same: record by record, and
    their states by the digest."""
    last = await asyncio.to_thread(settle, cluster)
    logs = await asyncio.gather(*(records_of(url, first, last) for url in cluster.urls))
    for node, log in zip(cluster.nodes, logs, strict=True):
        assert log == logs[0], f"node {node} has another log than node {cluster.nodes[0]}"
    statuses = [cluster.status(node) for node in cluster.nodes]
    digests = {msgspec.json.encode((each.applied, each.state)) for each in statuses if each is not None}
    assert len(digests) == 1, f"the nodes' states differ: {digests}"
    return logs[0]


async def check_exactly_once(cluster: LocalCluster, load: Load) -> list[LogRecord]:
    """Checks that all nodes hold the same log; returns the log since the load.

    Every acknowledged value of the load is at the index and in the term of its answer, and no value is there twice. A
    value without an answer at the end is there once or not at all.
    """
    records = await equal_logs(cluster, min(load.sessions))
    at = {record.index: record for record in records}
    applied = Counter(record.value for record in records if record.session in load.sessions and is_append(record))
    twice = {value: count for value, count in applied.items() if count > 1}
    assert not twice, f"applied more than once: {twice}"
    for write in load.acknowledged:
        record = at.get(write.index)
        assert record is not None, f"acknowledged and lost: {write}"
        assert (record.value, is_append(record)) == (write.value.decode(), True), f"{write} but the log has {record}"
    values = {write.value.decode() for write in load.acknowledged}
    assert len(values) == len(load.acknowledged), "a value was acknowledged twice"
    strangers = set(applied) - values - {value.decode() for value in load.open.values()}
    assert not strangers, f"in the log, but neither acknowledged nor open: {strangers}"
    return records


def is_append(record: LogRecord) -> bool:
    """Whether the record is a user's append that was applied, not a repetition of one."""
    return record.operation == "append" and record.result == "applied"


def distribution(seconds: Iterable[float]) -> str:
    """Count, minimum, median, 90th percentile and maximum in ms, for people."""
    ordered = sorted(value * 1000 for value in seconds)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return (
        f"n={len(ordered)} min={ordered[0]:.0f} p50={at(0.5):.0f} p90={at(0.9):.0f} max={ordered[-1]:.0f} ms: "
        + " ".join(f"{value:.0f}" for value in ordered)
    )
