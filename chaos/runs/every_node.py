"""Asks each node of a healed cluster for a write and a linearizable read, and for both within a bound.

The simulator demands the same of its worlds (`chaos/sim/seed/every_node.py`). Each client asks one node alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from raftlog import Client, ClientError
from raftlog.chaos.judge.verdicts import EVERY_NODE_SERVES, SERVES_TIMEOUTS
from raftlog.chaos.workloads.log import Appends

ENDS_S: Final = 30.0
"""Deadline of each request, in seconds: behind the bound, so that a late answer differs from a missing one."""

ELECTION_TIMEOUT: Final = "raft.election_timeout_max_ms"
ELECTION_TIMEOUT_MS: Final = 600
"""Its default."""


def bound_s(settings: Mapping[str, Any]) -> float:
    """The longest time in which each node with these settings serves."""
    return float(SERVES_TIMEOUTS * settings.get(ELECTION_TIMEOUT, ELECTION_TIMEOUT_MS) / 1_000)


async def every_node_serves(
    clients: Mapping[int, Client], appends: Appends | None, within_s: float, waited_s: Callable[[], float]
) -> tuple[int, list[str]]:
    """The index of the last record of `appends` that was written here, and the faults found, as whole sentences.

    All nodes are asked at the same time. `waited_s` counts how long the processes waited for a core; that time is not
    the nodes'.
    """
    asked = [_serves(node, client, appends, within_s, waited_s) for node, client in clients.items()]
    found = await asyncio.gather(*asked)
    problems = [
        f"{EVERY_NODE_SERVES}, but not node {node}: {wrong}"
        for node, (_, wrong) in zip(clients, found, strict=True)
        if wrong
    ]
    return max((index for index, _ in found), default=0), problems


async def _serves(
    node: int, client: Client, appends: Appends | None, within_s: float, waited_s: Callable[[], float]
) -> tuple[int, str]:
    """The index of the record that was written there, and the fault found; "": none."""
    index, began_s, before_s = 0, time.monotonic(), waited_s()
    key = f"final/{node}".encode()
    try:
        if appends is not None:
            appended = await appends.append(client, f"final-{node}", node, f"final-{node}:1")
            if appended is None:
                return 0, "its append was not acknowledged"
            index = appended.index or 0
        await client.put(key, b"2")
        item = await client.get(key)
    except (ClientError, TimeoutError) as error:
        return index, f"{type(error).__name__}: {error}"
    took_s = time.monotonic() - began_s - (waited_s() - before_s)
    if item is None or item.value != b"2":
        return index, f"it read {item} after it had written 2"
    return index, f"write and read took {took_s:.1f} s, the bound is {within_s:g} s" if took_s > within_s else ""
